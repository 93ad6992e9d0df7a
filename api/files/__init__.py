"""Serves files; `python -m api.files` reads batches out of files and writes their results into files."""
