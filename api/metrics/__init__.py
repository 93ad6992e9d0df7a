"""What was measured: Prometheus text, a JSON summary, and the caches."""
