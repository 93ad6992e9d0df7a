"""Int8 matrix products; weights are scaled per output channel, activations per token."""

from kernels.int8_linear.op import PackedInt8Weight, int8_linear, is_available, is_exact, pack_int8_weight

__all__ = ["PackedInt8Weight", "int8_linear", "is_available", "is_exact", "pack_int8_weight"]
