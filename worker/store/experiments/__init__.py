"""Experiments: requests of a batch that run under another model too, and what they show."""
