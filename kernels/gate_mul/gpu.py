"""Launches gated activations on a GPU."""

import torch
import triton
from torch import Tensor

from kernels.gate_mul.activations import Activation
from kernels.gate_mul.kernel import gate_and_multiply

BLOCK = 1024


def gated(gate_up: Tensor, activation: Activation) -> Tensor:
    """Return `activation(gate) * up`, [num_tokens, width], for `gate_up` [num_tokens, 2 * width], gate first.

    Raises ValueError when the last axis is odd or not dense.
    """
    num_tokens, columns = gate_up.shape
    if columns % 2 or gate_up.stride(1) != 1:
        raise ValueError(
            f"{activation.value}_mul: gate_up is {tuple(gate_up.shape)} with strides {gate_up.stride()}"
        )
    width = columns // 2
    out = torch.empty(num_tokens, width, dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        gate_and_multiply[num_tokens, triton.cdiv(width, BLOCK)](
            gate_up, out, gate_up.stride(0), width, ACTIVATION=activation.value, BLOCK=BLOCK, num_warps=4
        )
    return out
