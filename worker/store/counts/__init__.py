"""Counters: meters of processes by minute, and ended batches by status."""
