"""Checks the arguments of gated activations and chooses the implementation."""

import torch
from torch import Tensor

from kernels import device
from kernels.gate_mul.activations import Activation
from kernels.gate_mul.cpu import gate
from kernels.threads import num_threads


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return `silu(gate) * up`, [num_tokens, width], for `gate_up` [num_tokens, 2 * width], gate first.

    Raises ValueError when its last axis is odd or it is not dense. On a GPU, rows may have any stride.
    """
    return _gated(gate_up, Activation.SILU)


def gelu_mul(gate_up: Tensor) -> Tensor:
    """Return `gelu(gate) * up` with the tanh form of GELU; shapes and errors are those of `silu_mul`.

    Source: Hendrycks and Gimpel, arXiv:1606.08415.
    """
    return _gated(gate_up, Activation.GELU)


def _gated(gate_up: Tensor, activation: Activation) -> Tensor:
    if device.uses_triton(gate_up):
        from kernels.gate_mul import gpu  # noqa: PLC0415  (Triton is there with a GPU only)

        return gpu.gated(gate_up, activation)
    num_rows, width = gate_up.shape
    if width % 2 or not gate_up.is_contiguous():
        raise ValueError(
            f"{activation.value}_mul: gate_up is {tuple(gate_up.shape)}, strides {gate_up.stride()}"
        )
    dtype = gate_up.dtype
    out = torch.empty(num_rows, width // 2, dtype=dtype)
    gate(
        num_threads(num_rows * width),
        num_rows,
        width // 2,
        activation is Activation.GELU,
        gate_up.data_ptr(),
        out.data_ptr(),
        dtype == torch.bfloat16,
    )
    return out
