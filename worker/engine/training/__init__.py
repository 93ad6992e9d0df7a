"""Trains decoders on text, for pruning and distillation. Needs no Engine."""
