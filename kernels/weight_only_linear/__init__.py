"""Products of 16-bit activations with weights in int8, int4, fp8 or NF4."""

from kernels.weight_only_linear.op import weight_only_linear
from kernels.weight_only_linear.weight import LinearWeight, pack_linear_weight, takes

__all__ = ["LinearWeight", "pack_linear_weight", "takes", "weight_only_linear"]
