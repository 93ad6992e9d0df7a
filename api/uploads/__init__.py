"""Uploads: files that come in parts."""
