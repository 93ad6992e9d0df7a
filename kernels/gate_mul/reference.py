"""Computes gated activations in float32 by their formulas."""

import math

import torch
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return the float32 reference result of `kernels.gate_mul.silu_mul`."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return gate / (1 + torch.exp(-gate)) * up


def gelu_mul(gate_up: Tensor) -> Tensor:
    """Return the float32 reference result of `kernels.gate_mul.gelu_mul`."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    return gate / 2 * (1 + torch.tanh(inner)) * up
