"""Shapes for the KV write test and bench."""

# Each: num_tokens, num_kv_heads, num_blocks, block_size, head_dim
CASES: tuple[tuple[int, int, int, int, int], ...] = (
    (1, 1, 1, 1, 1),
    (5, 3, 7, 4, 6),
    (33, 2, 9, 16, 64),
)
