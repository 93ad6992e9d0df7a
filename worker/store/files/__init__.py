"""Files, uploads, and batches that are read from files."""
