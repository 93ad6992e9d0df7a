"""The SiLU gate in float32, written as the formula reads."""

import torch
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return the float32 truth for `kernels.silu_mul.silu_mul`."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return gate / (1 + torch.exp(-gate)) * up
