"""The SiLU gate on a CPU."""

import numpy as np

from kernels.compiled import Pointer, kernel
from kernels.simd import bfloat16_at, exp, float32_at, load, store
from kernels.threads import fork, share


@kernel
def _gate(part: int, num_parts: int, num_rows: int, width: int, gate_up: Pointer, out: Pointer) -> None:
    begin, end = share(num_rows, part, num_parts)
    for row in range(begin, end):
        for index in range(width):
            gate = load(gate_up, 2 * row * width + index)
            up = load(gate_up, (2 * row + 1) * width + index)
            store(out, row * width + index, gate / (np.float32(1) + exp(-gate)) * up)


@kernel
def gate(num_parts: int, num_rows: int, width: int, gate_up: int, out: int, is_bfloat16: bool) -> None:
    """Write `silu(gate) * up` of every row, between addresses."""
    if is_bfloat16:
        fork(_gate, num_parts, (num_rows, width, bfloat16_at(gate_up), bfloat16_at(out)))
    else:
        fork(_gate, num_parts, (num_rows, width, float32_at(gate_up), float32_at(out)))
