"""GELU gate: checks arguments and chooses the implementation."""

import torch
from torch import Tensor

from kernels import device
from kernels.gelu_mul.cpu import gate
from kernels.threads import num_threads


def gelu_mul(gate_up: Tensor) -> Tensor:
    """Return `gelu(gate) * up`, [num_tokens, width], for `gate_up` [num_tokens, 2 * width], gate first.

    The tanh form of GELU. Raises ValueError when its last axis is odd or it is not dense. Source: Hendrycks
    and Gimpel, arXiv:1606.08415.
    """
    if device.uses_triton(gate_up):
        from kernels.gelu_mul import gpu  # noqa: PLC0415  (Triton is there with a GPU only)

        return gpu.gelu_mul(gate_up)
    num_rows, width = gate_up.shape
    if width % 2 or not gate_up.is_contiguous():
        raise ValueError(f"gelu_mul: gate_up is {tuple(gate_up.shape)}, strides {gate_up.stride()}")
    dtype = gate_up.dtype
    out = torch.empty(num_rows, width // 2, dtype=dtype)
    gate(
        num_threads(num_rows * width),
        num_rows,
        width // 2,
        gate_up.data_ptr(),
        out.data_ptr(),
        dtype == torch.bfloat16,
    )
    return out
