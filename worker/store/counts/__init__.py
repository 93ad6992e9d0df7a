"""Counters: of processes by the minute, of batches by status."""
