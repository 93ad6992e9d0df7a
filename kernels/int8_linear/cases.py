"""Shapes for the int8 product test and bench."""

# Each: num_tokens, in_features, out_features
CASES: tuple[tuple[int, int, int], ...] = ((1, 1, 1), (3, 7, 5), (17, 384, 640), (64, 1024, 96))
