"""Quantizes tokens for an integer product on a CPU."""

import numpy as np

from kernels.compiled import Pointer, kernel
from kernels.simd import bfloat16_at, float32_at, load, maximum, store, store_level, uint8_at
from kernels.threads import fork, share

LARGEST = 127  # of a symmetric int8 range
# The least maximum from which a scale is computed, so that an all-zero token stays zero.
SMALLEST_MAXIMUM = 1e-8


@kernel
def _quantize(
    part: int, num_parts: int, num_rows: int, width: int, x: Pointer, levels: Pointer, maxima: Pointer
) -> None:
    begin, end = share(num_rows, part, num_parts)
    for row in range(begin, end):
        start = row * width
        largest = np.float32(SMALLEST_MAXIMUM)
        for index in range(width):
            largest = maximum(largest, abs(load(x, start + index)))
        store(maxima, row, largest)
        step = np.float32(LARGEST) / largest
        for index in range(width):
            # The conversion truncates; the added half makes it round.
            store_level(levels, start + index, load(x, start + index) * step + np.float32(128.5))


@kernel
def quantize(
    num_parts: int, num_rows: int, width: int, x: int, is_bfloat16: bool, levels: int, maxima: int
) -> None:
    """Write each token's `levels`, 128 for zero, and its largest absolute value.

    Tensors are given by their addresses.
    """
    if is_bfloat16:
        narrow = (num_rows, width, bfloat16_at(x), uint8_at(levels), float32_at(maxima))
        fork(_quantize, num_parts, narrow)
    else:
        fork(_quantize, num_parts, (num_rows, width, float32_at(x), uint8_at(levels), float32_at(maxima)))
