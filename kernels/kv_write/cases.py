"""Shapes for the test and the bench of the KV write."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WriteCase:
    """The number of a Step's tokens, a model's heads, and its cache's Blocks."""

    num_tokens: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_blocks: int = 9
    block_size: int = 16
    has_norms: bool = False


CASES: tuple[WriteCase, ...] = (
    WriteCase(1, 1, 1, 2, num_blocks=1, block_size=1),
    WriteCase(5, 6, 3, 6, num_blocks=7, block_size=4),
    WriteCase(33, 6, 2, 64),
    WriteCase(33, 6, 2, 64, has_norms=True),
    WriteCase(7, 4, 4, 80, has_norms=True),  # halves of 40: two registers and a half
    WriteCase(3, 18, 9, 8),  # more heads than a program takes
    WriteCase(140, 2, 1, 256),  # enough for more than one thread
)
