"""Serves batches made from files, in OpenAI's format."""
