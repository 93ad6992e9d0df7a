"""Computes the weight-only product in float32."""

import torch
from torch import Tensor

from kernels.quantization import QuantizedWeight


def weight_only_linear(
    x: Tensor, weight: QuantizedWeight | Tensor, bias: Tensor | None = None, *, is_gated: bool = False
) -> Tensor:
    """Return the float32 reference result for a weight packed with this bias."""
    values = weight.float() if isinstance(weight, Tensor) else weight.dequantize()
    out = x.float() @ values.T
    if bias is not None:
        out = out + bias.float()
    if is_gated:
        gate, up = out.chunk(2, dim=1)
        out = torch.nn.functional.silu(gate) * up
    return out
