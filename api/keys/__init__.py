"""Serves API keys over HTTP to administrators."""
