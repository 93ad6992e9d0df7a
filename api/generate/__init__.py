"""Serves work that a client waits for, through the same durable queue as batches, in a lane of its own."""
