"""RMS normalisation on a CPU, with the addition before it in the same pass."""

import numba
import numpy as np

from kernels.simd import kernel, load, parallel_kernel, share, store


@kernel
def _normalise(
    begin: int,
    end: int,
    x: np.ndarray,
    residual: np.ndarray,
    weight: np.ndarray,
    eps: float,
    out: np.ndarray,
) -> None:
    width = weight.shape[0]
    total = np.empty(width, dtype=np.float32)
    for row in range(begin, end):
        start = row * width
        squares = np.float32(0)
        if residual.shape[0]:
            for index in range(width):
                value = load(residual, start + index) + load(x, start + index)
                store(residual, start + index, value)
                store(total, index, value)
                squares += value * value
        else:
            for index in range(width):
                value = load(x, start + index)
                store(total, index, value)
                squares += value * value
        scale = np.float32(1) / np.sqrt(squares / np.float32(width) + np.float32(eps))
        for index in range(width):
            store(out, start + index, load(total, index) * scale * load(weight, index))


@parallel_kernel
def normalise(
    num_parts: int,
    x: np.ndarray,
    residual: np.ndarray,
    weight: np.ndarray,
    eps: float,
    out: np.ndarray,
) -> None:
    """Write the normalised rows of `x`, or of `residual + x` kept in `residual` unless that is empty."""
    num_rows = out.shape[0] // weight.shape[0]
    if num_parts == 1:
        _normalise(0, num_rows, x, residual, weight, eps, out)
    else:
        for part in numba.prange(num_parts):
            begin, end = share(num_rows, part, num_parts)
            _normalise(
                begin,
                end,
                x,
                residual,
                weight,
                eps,
                out,
            )
