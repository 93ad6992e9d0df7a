"""Shapes for the rotary embedding test and bench."""

# Each: num_tokens, num_heads, head_dim
CASES: tuple[tuple[int, int, int], ...] = ((1, 1, 2), (5, 3, 6), (33, 8, 64), (7, 20, 128))
