"""Computes products by expert in float32, one expert at a time."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.quantization import QuantizedWeight


def expert_linear(
    x: Tensor, weight: QuantizedWeight | Tensor, expert_ends: Sequence[int], *, is_gated: bool = False
) -> Tensor:
    """Return the float32 reference result of `kernels.expert_linear.expert_linear`."""
    dense = weight if isinstance(weight, Tensor) else weight.dequantize()
    products, first = [], 0
    for end, rows in zip(expert_ends, dense.float().chunk(len(expert_ends)), strict=True):
        out = x[first:end].float() @ rows.T
        if is_gated:
            gate, up = out.chunk(2, dim=1)
            out = torch.nn.functional.silu(gate) * up
        products.append(out)
        first = end
    return torch.cat(products)
