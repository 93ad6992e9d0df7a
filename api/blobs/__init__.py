"""Stores bytes under their SHA-256, in a local directory or an S3 bucket. Knows no rows and no HTTP."""
