"""SiLU gate: checks arguments and chooses the implementation."""

import torch
from torch import Tensor

from kernels.silu_mul.cpu import gate
from kernels.simd import flat
from kernels.threads import num_threads


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return `silu(gate) * up`, [num_tokens, width], for `gate_up` [num_tokens, 2 * width], gate first.

    Raises ValueError when its last axis is odd.
    """
    if gate_up.shape[-1] % 2:
        raise ValueError(f"silu_mul: gate_up is {tuple(gate_up.shape)}")
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(num_rows, width, dtype=gate_up.dtype)
    gate(num_threads(gate_up.numel()), width, flat(gate_up), flat(out))
    return out
