"""Store files, uploads, and batches that are read from files."""
