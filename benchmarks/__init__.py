"""Whole-system benchmarks; each ends with one JSON line."""
