"""Trains heads that guess a model's later tokens: `python -m worker.engine.medusa`. Needs no Engine."""
