"""Steps for the test and the bench of paged attention."""

from dataclasses import dataclass

from kernels.paged_attention.tree import hidden_places


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """A model's heads, and the (query, context) lengths of a Step's Sequences in packed order.

    The rows of a Sequence are a chain, or the tree of which `trees` has the parents.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    lens: tuple[tuple[int, int], ...]
    block_size: int = 16
    window: int | None = None
    soft_cap: float | None = None
    trees: tuple[tuple[int, ...], ...] = ()

    @property
    def hidden(self) -> list[int] | None:
        """The places that each row does not read, for all Sequences; None without trees."""
        if not self.trees:
            return None
        return [bits for parents in self.trees for bits in hidden_places(parents)]


CHAIN = (-1, *range(30))
# A fork at once, two levels of forks, and a chain that ends in a fork behind many others.
FORK, FORKS = (-1, 0, 0), (-1, 0, 0, 1, 1, 2, 3, 3, 5)
BUSH = (-1, *[0] * 20, 20, 21, 1, 23, 23)


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
    AttentionCase(6, 2, 64, ((3, 40), (9, 41), (26, 60), (1, 30)), trees=(FORK, FORKS, BUSH, (-1,))),
    AttentionCase(
        6, 3, 10, ((9, 38), (9, 39), (5, 37)), block_size=4, trees=(FORKS, FORKS, CHAIN[:5])
    ),  # trees over several Blocks
    AttentionCase(40, 1, 16, ((9, 21), (9, 9)), soft_cap=2.0, trees=(FORKS, FORKS)),  # an item for each row
    AttentionCase(6, 2, 64, ((9, 77), (26, 45)), window=5, trees=(FORKS, BUSH)),
    AttentionCase(6, 2, 64, ((9, 77), (26, 45)), window=32, trees=(FORKS, BUSH)),
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
    AttentionCase(6, 2, 16, ((3, 77), (1, 5), (9, 40), (26, 60)), trees=(FORK, (-1,), FORKS, BUSH)),
    AttentionCase(6, 3, 10, ((9, 38), (9, 9)), block_size=4, soft_cap=2.0, trees=(FORKS, FORKS)),
    AttentionCase(4, 2, 16, ((9, 80), (26, 91)), window=32, trees=(FORKS, BUSH)),
)
