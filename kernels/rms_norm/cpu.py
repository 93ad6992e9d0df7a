"""Computes RMS normalisation on a CPU, in one pass with the addition before it."""

import numpy as np

from kernels.compiled import Pointer, kernel
from kernels.simd import bfloat16_at, float32_at, load, store
from kernels.threads import fork, share


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
    num_parts: int,
    num_rows: int,
    width: int,
    x: int,
    is_bfloat16_in: bool,
    residual: int,
    weight: int,
    eps: float,
    out: int,
    is_bfloat16_out: bool,
) -> None:
    """Write the normalised rows of `x`, or, unless `residual` is 0, of `residual + x`.

    The sum is stored in `residual`. Tensors are given by their addresses.
    """
    has_residual = residual != 0
    total, scale = float32_at(residual), float32_at(weight)
    if is_bfloat16_in:
        rows = (num_rows, width, has_residual, bfloat16_at(x), total, scale, eps, bfloat16_at(out))
        fork(_normalise, num_parts, rows)
    elif is_bfloat16_out:
        narrowed = (num_rows, width, has_residual, float32_at(x), total, scale, eps, bfloat16_at(out))
        fork(_normalise, num_parts, narrowed)
    else:
        wide = (num_rows, width, has_residual, float32_at(x), total, scale, eps, float32_at(out))
        fork(_normalise, num_parts, wide)
