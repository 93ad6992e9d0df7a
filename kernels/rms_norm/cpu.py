"""RMS normalisation on a CPU, with the addition before it in the same pass."""

import numpy as np

from kernels.simd import load, store
from kernels.threads import Pointer, fork, kernel, share


@kernel
def _normalise(
    part: int,
    num_parts: int,
    num_rows: int,
    width: int,
    has_residual: bool,
    x: Pointer,
    residual: Pointer,
    weight: Pointer,
    eps: float,
    out: Pointer,
) -> None:
    begin, end = share(num_rows, part, num_parts)
    for row in range(begin, end):
        start = row * width
        squares = np.float32(0)
        if has_residual:
            for index in range(width):
                value = load(residual, start + index) + load(x, start + index)
                store(residual, start + index, value)
                squares += value * value
        else:
            for index in range(width):
                value = load(x, start + index)
                squares += value * value
        scale = np.float32(1) / np.sqrt(squares / np.float32(width) + np.float32(eps))
        if has_residual:
            for index in range(width):
                store(out, start + index, load(residual, start + index) * scale * load(weight, index))
        else:
            for index in range(width):
                store(out, start + index, load(x, start + index) * scale * load(weight, index))


@kernel
def normalise(
    num_parts: int, x: np.ndarray, residual: np.ndarray, weight: np.ndarray, eps: float, out: np.ndarray
) -> None:
    """Write the normalised rows of `x`, or of `residual + x` kept in `residual` unless that is empty."""
    width, has_residual = weight.shape[0], residual.shape[0] > 0
    fork(
        _normalise,
        num_parts,
        (out.shape[0] // width, width, has_residual, x, residual, weight, eps, out),
    )
