"""Cuts what matters least out of a model: `python -m worker.engine.prune`. Needs no Engine."""
