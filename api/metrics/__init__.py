"""Serves measurements: Prometheus text, a JSON summary, and the caches."""
