"""Serves batches over HTTP: submission, progress, results and control."""
