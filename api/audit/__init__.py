"""Serves the audit log to administrators."""
