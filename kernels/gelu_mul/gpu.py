"""GELU gate on a GPU."""

import torch
import triton
from torch import Tensor

from kernels.gelu_mul.kernel import gate_and_multiply

BLOCK = 1024


def gelu_mul(gate_up: Tensor) -> Tensor:
    """Return `gelu(gate) * up`, [num_tokens, width], for `gate_up` [num_tokens, 2 * width], gate first.

    The tanh form of GELU. Raises ValueError when the last axis is odd or not dense. Source: Hendrycks and
    Gimpel, arXiv:1606.08415.
    """
    num_tokens, columns = gate_up.shape
    if columns % 2 or gate_up.stride(1) != 1:
        raise ValueError(f"gelu_mul: gate_up is {tuple(gate_up.shape)} with strides {gate_up.stride()}")
    width = columns // 2
    out = torch.empty(num_tokens, width, dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        grid = (num_tokens, triton.cdiv(width, BLOCK))
        gate_and_multiply[grid](gate_up, out, gate_up.stride(0), width, BLOCK=BLOCK, num_warps=4)
    return out
