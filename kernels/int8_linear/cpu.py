"""Quantization of tokens for an integer product on a CPU."""

import numba
import numpy as np

from kernels.simd import kernel, load, maximum, parallel_kernel, share, store_level

LARGEST = 127  # of a symmetric int8 range
# What an all-zero token is scaled by, so that it stays zero.
SMALLEST_MAXIMUM = 1e-8


@kernel
def _quantize(
    begin: int, end: int, width: int, x: np.ndarray, levels: np.ndarray, maxima: np.ndarray
) -> None:
    for row in range(begin, end):
        start = row * width
        largest = np.float32(SMALLEST_MAXIMUM)
        for index in range(width):
            largest = maximum(largest, abs(load(x, start + index)))
        maxima[row] = largest
        step = np.float32(LARGEST) / largest
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
