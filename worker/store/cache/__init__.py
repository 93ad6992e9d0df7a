"""Answers kept for whoever asks the same."""
