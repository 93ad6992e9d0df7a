"""Requests and results as rows."""
