"""Serves uploads: files that arrive in parts."""
