"""Model architectures, their checkpoints, and the registry between the two."""
