"""Products of float activations with weights in int8, int4, fp8 or NF4."""

from kernels.weight_only_linear.op import weight_only_argmax, weight_only_linear
from kernels.weight_only_linear.tiles import TiledWeight, pack_tiled_weight, rows_of
from kernels.weight_only_linear.weight import LinearWeight, pack_linear_weight, takes

__all__ = [
    "LinearWeight",
    "TiledWeight",
    "pack_linear_weight",
    "pack_tiled_weight",
    "rows_of",
    "takes",
    "weight_only_argmax",
    "weight_only_linear",
]
