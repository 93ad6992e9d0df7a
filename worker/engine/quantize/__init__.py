"""Makes quantized checkpoints: `python -m worker.engine.quantize`."""
