"""Checkpoints that ship with the repository, and the scripts that made them."""
