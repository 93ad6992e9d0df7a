"""Shapes and formats for the test and the bench of the weight-only product."""

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.quantization import QuantizedWeight, quantize_fp8, quantize_int4, quantize_int8, quantize_nf4

FORMATS: dict[str, Callable[[Tensor], QuantizedWeight]] = {
    "int8": quantize_int8,
    "int8-zero": lambda weight: quantize_int8(weight, is_symmetric=False),
    "int4-32": lambda weight: quantize_int4(weight, group_size=32),
    "int4-64": lambda weight: quantize_int4(weight, group_size=64, scale_dtype=torch.float16),
    "int4-128-zero": lambda weight: quantize_int4(weight, group_size=128, is_symmetric=False),
    "fp8": quantize_fp8,
    "fp8-block": lambda weight: quantize_fp8(weight, block=(min(32, len(weight)), 64)),
    "nf4": quantize_nf4,
    "nf4-nested": lambda weight: quantize_nf4(weight, is_nested=True),
}
# Each: num_tokens, in_features, out_features. Columns are whole groups in all formats.
CASE = (3, 256, 22)
# For formats with one scale per row, any number of columns.
ODD_CASES: tuple[tuple[int, int, int], ...] = ((1, 1, 2), (17, 77, 34))
# More tokens than a tile holds, and columns that no number of splits divides.
LONG_CASE = (19, 640, 38)
# Llama 3.1 8B, and the square shapes for which others publish timings: in_features, out_features.
BENCH_SHAPES: tuple[tuple[int, int], ...] = (
    (4096, 6144),
    (4096, 28672),
    (14336, 4096),
    (8192, 8192),
    (16384, 16384),
)
BENCH_TOKENS: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)
