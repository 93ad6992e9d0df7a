"""Products of tokens and weights that both have 8 bits, int8 or fp8."""

from kernels.scaled_linear.op import scaled_linear
from kernels.scaled_linear.weight import ScaledWeight, has_row_scales, pack_scaled_weight

__all__ = ["ScaledWeight", "has_row_scales", "pack_scaled_weight", "scaled_linear"]
