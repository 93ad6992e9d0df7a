"""Shapes for the test and the bench of RMS normalisation."""

CASES: tuple[tuple[int, int], ...] = ((1, 1), (3, 7), (17, 384), (64, 1024))  # num_tokens, hidden
