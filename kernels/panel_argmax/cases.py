"""Shapes for the test of the largest output."""

# Each: num_rows, in_features, out_features
CASES: tuple[tuple[int, int, int], ...] = ((1, 4, 1), (7, 67, 200), (33, 384, 1000))
