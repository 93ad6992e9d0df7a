"""How the kernel is launched, for what launches it and what compiles it ahead of time. Not tuned yet."""

from kernels.crossover import Regime

# By tokens of an expert on average: with few, tiles are short, since each expert has one that is not full.
FEW = Regime("tile", 16, block_m=16, block_n=64, block_k=64, num_warps=4, num_stages=3)
MANY = Regime("tile", None, block_m=64, block_n=64, block_k=64, num_warps=4, num_stages=3)


def choose(num_tokens: int, num_experts: int, element_size: int) -> Regime:
    """Return the regime by what the host knows: how many tokens there are, not whose they are.

    Tokens of 4 bytes take the short tile: two of the long one's accumulators do not fit in registers.
    """
    return FEW if element_size == 4 or num_tokens <= 16 * num_experts else MANY


def block_k(regime: Regime, group_size: int) -> int:
    """Return the columns at once: within one group."""
    return min(regime.block_k, group_size or regime.block_k)
