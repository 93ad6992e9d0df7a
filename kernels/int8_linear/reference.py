"""Computes the int8 product with its integers in float64, where they are exact."""

import torch
from torch import Tensor


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return integers in -127..127 and each row's scale, both float32; `x` is about integer * scale."""
    maximum = x.float().abs().amax(dim=-1, keepdim=True).clamp(min=1e-8)
    return torch.floor(x.float() * (127 / maximum) + 128.5) - 128, maximum / 127


def int8_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the float32 reference result of `kernels.int8_linear.int8_linear`; `weight` is not quantized."""
    numbers, scales = quantize(x)
    weight_scales = weight.float().abs().amax(dim=1).clamp(min=1e-8) / 127
    weight_numbers = torch.round(weight.float() / weight_scales.unsqueeze(1))
    sums = numbers.double() @ weight_numbers.double().T
    out = sums * scales.double() * weight_scales.double()
    return (out if bias is None else out + bias.double()).float()
