"""The GELU gate on a CPU."""

import numba
import numpy as np

from kernels.simd import kernel, load, parallel_kernel, share, store, tanh


@kernel
def _gate(begin: int, end: int, width: int, gate_up: np.ndarray, out: np.ndarray) -> None:
    for row in range(begin, end):
        for index in range(width):
            gate = load(gate_up, 2 * row * width + index)
            up = load(gate_up, (2 * row + 1) * width + index)
            inner = np.float32(0.7978845608) * (gate + np.float32(0.044715) * gate * gate * gate)
            store(out, row * width + index, np.float32(0.5) * gate * (np.float32(1) + tanh(inner)) * up)


@parallel_kernel
def gate(num_parts: int, width: int, gate_up: np.ndarray, out: np.ndarray) -> None:
    """Write `gelu(gate) * up` of every row."""
    num_rows = out.shape[0] // width
    if num_parts == 1:
        _gate(0, num_rows, width, gate_up, out)
    else:
        for part in numba.prange(num_parts):
            begin, end = share(num_rows, part, num_parts)
            _gate(begin, end, width, gate_up, out)
