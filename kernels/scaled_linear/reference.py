"""Computes the 8-bit product in float32; sums of integers are in float64, where they are exact."""

import torch
from torch import Tensor

from kernels.quantization import Fp8Weight, Int8Weight


def scaled_linear(
    levels: Tensor,
    scales: Tensor,
    weight: Int8Weight | Fp8Weight,
    bias: Tensor | None = None,
    *,
    is_gated: bool = False,
) -> Tensor:
    """Return the float32 reference result of tokens [num_tokens, in_features], scales [num_tokens, 1]."""
    out = (levels.double() * scales.double()) @ weight.dequantize().double().T
    if bias is not None:
        out = out + bias.double()
    if is_gated:
        gate, up = out.chunk(2, dim=1)
        out = torch.nn.functional.silu(gate) * up
    return out.float()
