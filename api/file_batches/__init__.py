"""Batches made from files, as OpenAI's clients know them."""
