"""Benchmarks of the whole system; each prints one JSON line at the end."""
