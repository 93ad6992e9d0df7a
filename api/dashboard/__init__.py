"""Serves the operators' dashboard: one page, and the one route that only it needs."""
