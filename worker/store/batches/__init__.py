"""Batches, from submission to their one terminal state."""
