"""Rotary embedding in float32 as a rotation of complex numbers."""

import torch
from torch import Tensor


def apply_rotary(heads: Tensor, angles: Tensor) -> Tensor:
    """Rotate `heads` [num_tokens, num_heads, head_dim] by `angles` [num_tokens, head_dim / 2] in radians."""
    half = heads.shape[-1] // 2
    numbers = torch.complex(heads[..., :half].float(), heads[..., half:].float())
    rotated = numbers * torch.polar(torch.ones_like(angles), angles).unsqueeze(1)
    return torch.cat((rotated.real, rotated.imag), dim=-1)
