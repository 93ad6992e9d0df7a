"""Batches from submission to their one end."""
