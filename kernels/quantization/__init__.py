"""Formats of quantized weights, keys and values, and conversions to and from them."""

from kernels.quantization.fp8 import Fp8Weight, quantize_fp8
from kernels.quantization.int4 import Int4Weight, quantize_int4
from kernels.quantization.int8 import Int8Weight, quantize_int8
from kernels.quantization.kv import QuantizedHeads, quantize_heads
from kernels.quantization.nf4 import Nf4Weight, quantize_nf4
from kernels.quantization.stacking import QuantizedWeight, stack_weights

__all__ = [
    "Fp8Weight",
    "Int4Weight",
    "Int8Weight",
    "Nf4Weight",
    "QuantizedHeads",
    "QuantizedWeight",
    "quantize_fp8",
    "quantize_heads",
    "quantize_int4",
    "quantize_int8",
    "quantize_nf4",
    "stack_weights",
]
