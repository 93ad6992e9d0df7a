"""Bytes kept under their SHA-256: a local directory or an S3 bucket. Knows no rows and no HTTP."""
