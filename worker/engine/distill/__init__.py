"""Teaches a small model what a larger one says: `python -m worker.engine.distill`. Needs no Engine."""
