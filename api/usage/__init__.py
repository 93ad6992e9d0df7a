"""Serves what the work of tenants came to: requests, tokens, device seconds, cost, latencies."""
