"""Quantizes checkpoints: `python -m worker.engine.quantize`. Needs no Engine."""
