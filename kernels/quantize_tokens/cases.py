"""Shapes for the test and the bench of token quantization."""

CASES: tuple[tuple[int, int], ...] = ((1, 1), (3, 7), (17, 384), (5, 1100))  # num_tokens, width
