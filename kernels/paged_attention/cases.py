"""Steps for the test and the bench of paged attention."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """A model's heads, and the (query, context) lengths of a Step's Sequences in packed order."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    lens: tuple[tuple[int, int], ...]
    block_size: int = 16
    window: int | None = None
    soft_cap: float | None = None


CASES: tuple[AttentionCase, ...] = (
    AttentionCase(1, 1, 2, ((1, 1),)),
    AttentionCase(4, 4, 8, ((1, 16), (1, 16))),  # no padding at all
    AttentionCase(6, 2, 64, ((1, 500), (1, 490), (1, 33), (1, 17), (1, 1))),  # several decode groups
    AttentionCase(6, 2, 64, ((1, 1), (1, 300), (1, 16), (1, 299))),  # not sorted
    AttentionCase(8, 1, 16, ((7, 7),)),  # prefill from the start
    AttentionCase(6, 3, 10, ((5, 38), (16, 16), (3, 35)), block_size=4),  # chunks with context before them
    AttentionCase(6, 2, 64, ((1, 77), (1, 5), (33, 33), (2, 40), (1, 9))),  # mixed
    AttentionCase(
        2, 1, 8, ((300, 310), (129, 129), (128, 128))
    ),  # several tiles of rows, the last of one row
    AttentionCase(6, 2, 64, ((1, 77), (1, 5), (33, 33), (2, 40), (1, 9)), window=8),
    AttentionCase(4, 2, 16, ((1, 16), (1, 16), (150, 160)), window=16),  # the window ends on a Block
    AttentionCase(6, 2, 64, ((1, 77), (1, 5), (33, 33), (1, 32)), soft_cap=2.0),
    AttentionCase(6, 2, 64, ((1, 77), (1, 5), (33, 33)), window=8, soft_cap=2.0),
    AttentionCase(2, 1, 136, ((1, 20), (3, 9))),  # a head of two runs of registers and a rest
)

# Cases of the GPU's kernel. They are small, since it is interpreted where there is no GPU, but cover several
# Sequences, heads, tiles and splits.
GPU_CASES: tuple[AttentionCase, ...] = (
    AttentionCase(1, 1, 2, ((1, 1),), block_size=4),
    AttentionCase(4, 4, 8, ((1, 16), (1, 32)), block_size=4),  # splits that end with the context
    AttentionCase(6, 2, 16, ((1, 150), (1, 33), (1, 17), (1, 1)), block_size=8),
    AttentionCase(8, 1, 16, ((7, 7),)),  # prefill from the start
    AttentionCase(6, 3, 10, ((5, 38), (16, 16), (3, 35)), block_size=4),  # a head that is no power of 2
    AttentionCase(6, 2, 16, ((1, 77), (1, 5), (33, 33), (2, 40), (1, 9))),  # mixed
    AttentionCase(7, 1, 24, ((1, 50), (9, 20)), block_size=32),  # nor is a group
    AttentionCase(4, 2, 16, ((1, 70), (3, 60), (4, 4), (0, 7), (1, 64))),  # a Sequence without rows
    AttentionCase(6, 2, 16, ((1, 77), (1, 5), (33, 40), (2, 40)), window=8),
    AttentionCase(
        4, 2, 16, ((1, 31), (1, 32), (1, 33), (1, 48), (40, 49)), window=16
    ),  # windows that end on a split
    AttentionCase(4, 2, 8, ((1, 90), (4, 91), (20, 85)), window=37),  # splits begin after the first
    AttentionCase(6, 2, 16, ((1, 77), (1, 5), (33, 33), (1, 32)), soft_cap=2.0),
    AttentionCase(6, 2, 16, ((1, 77), (1, 5), (20, 33)), window=8, soft_cap=2.0),
)
