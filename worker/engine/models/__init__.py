"""Loads models: their architectures, their checkpoints, and the registry that connects the two."""
