"""Shapes for the test and the bench of the int8 product."""

# Each: num_tokens, in_features, out_features
CASES: tuple[tuple[int, int, int], ...] = ((1, 1, 1), (3, 7, 5), (17, 384, 640), (64, 1024, 96))
