"""Quantization of tokens for an integer product on a CPU."""

import numba
import numpy as np

from kernels.simd import kernel, largest_magnitude, load, parallel_kernel, share, store_level

LARGEST = 127  # of a symmetric int8 range
# What an all-zero token is scaled by, so that it stays zero.
SMALLEST_MAXIMUM = 1e-8


@kernel
def _quantize(
    begin: int, end: int, width: int, x: np.ndarray, levels: np.ndarray, maxima: np.ndarray
) -> None:
    for row in range(begin, end):
        start = row * width
        maximum = max(np.float32(SMALLEST_MAXIMUM), largest_magnitude(x, start, start + width))
        total = np.float32(0)
        for index in range(width):
            total += load(x, start + index)
        # A NaN, which no comparison finds, shows in the sum.
        maxima[row] = maximum + (total - total)
        step = np.float32(LARGEST) / maximum
        for index in range(width):
            store_level(levels, start + index, load(x, start + index) * step + np.float32(128.5))


@parallel_kernel
def quantize(num_parts: int, width: int, x: np.ndarray, levels: np.ndarray, maxima: np.ndarray) -> None:
    """Write each token's `levels`, 128 for zero, and its largest absolute value."""
    num_rows = maxima.shape[0]
    if num_parts == 1:
        _quantize(0, num_rows, width, x, levels, maxima)
    else:
        for part in numba.prange(num_parts):
            begin, end = share(num_rows, part, num_parts)
            _quantize(begin, end, width, x, levels, maxima)
