"""Quantizes tokens in float32 by the formula."""

import torch
from torch import Tensor

from kernels.quantize_tokens.formats import LARGEST, SMALLEST_MAXIMUM


def quantize_tokens(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the reference levels and scales of `kernels.quantize_tokens.quantize_tokens`."""
    x = x.float()
    maximum = x.abs().amax(dim=1, keepdim=True).clamp(min=SMALLEST_MAXIMUM)
    value = x * (LARGEST[dtype] / maximum)
    if dtype == torch.int8:
        value = value + torch.where(value < 0, -0.5, 0.5)  # the conversion cuts
    return value.to(dtype), maximum / LARGEST[dtype]
