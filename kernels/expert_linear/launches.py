"""Chooses how the kernel is launched, for `gpu.py` and for ahead-of-time compilation; not tuned yet."""

from kernels.crossover import Regime

# For few and for many tokens per expert on average. Few tokens get short tiles, since each expert has one
# partial tile.
FEW = Regime("tile", 16, block_m=16, block_n=64, block_k=64, num_warps=4, num_stages=3)
MANY = Regime("tile", None, block_m=64, block_n=64, block_k=64, num_warps=4, num_stages=3)


def choose(num_tokens: int, num_experts: int, element_size: int) -> Regime:
    """Return the regime by the total number of tokens; the host does not know which expert each one chose.

    Elements of 4 bytes take the short tile: two accumulators of the long one do not fit in registers.
    """
    return FEW if element_size == 4 or num_tokens <= 16 * num_experts else MANY


def block_k(regime: Regime, group_size: int) -> int:
    """Return the number of columns per iteration, which must lie within one group."""
    return min(regime.block_k, group_size or regime.block_k)
