"""Serves the store over HTTP as a thin FastAPI application. Never loads torch."""
