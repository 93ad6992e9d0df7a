"""Shapes for the test and the bench of gated activations."""

CASES: tuple[tuple[int, int], ...] = ((1, 1), (3, 7), (17, 1536), (64, 2816))  # num_tokens, width
