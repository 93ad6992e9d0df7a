"""Measures the figures that the design documents state: `make claims` (docs/benchmarks.md)."""
