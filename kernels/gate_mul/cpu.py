"""Computes gated activations on a CPU."""

import numpy as np

from kernels.compiled import Pointer, kernel
from kernels.simd import bfloat16_at, exp, float32_at, load, store, tanh
from kernels.threads import fork, share


@kernel
def _gate(
    part: int, num_parts: int, num_rows: int, width: int, is_gelu: bool, gate_up: Pointer, out: Pointer
) -> None:
    begin, end = share(num_rows, part, num_parts)
    for row in range(begin, end):
        first, second, target = 2 * row * width, (2 * row + 1) * width, row * width
        if is_gelu:
            for index in range(width):
                gate, up = load(gate_up, first + index), load(gate_up, second + index)
                inner = np.float32(0.7978845608) * (gate + np.float32(0.044715) * gate * gate * gate)
                store(out, target + index, np.float32(0.5) * gate * (np.float32(1) + tanh(inner)) * up)
        else:
            for index in range(width):
                gate, up = load(gate_up, first + index), load(gate_up, second + index)
                store(out, target + index, gate / (np.float32(1) + exp(-gate)) * up)


@kernel
def gate(
    num_parts: int, num_rows: int, width: int, is_gelu: bool, gate_up: int, out: int, is_bfloat16: bool
) -> None:
    """Write `activation(gate) * up` of every row; tensors are given by their addresses."""
    if is_bfloat16:
        fork(_gate, num_parts, (num_rows, width, is_gelu, bfloat16_at(gate_up), bfloat16_at(out)))
    else:
        fork(_gate, num_parts, (num_rows, width, is_gelu, float32_at(gate_up), float32_at(out)))
