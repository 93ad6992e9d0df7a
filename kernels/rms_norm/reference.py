"""Computes RMS normalisation in float32 by the formula."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the float32 reference result of `kernels.rms_norm.rms_norm`."""
    x = x.float()
    return x / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight.float()


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the reference sum, normalised, and the new residual of `kernels.rms_norm.add_rms_norm`."""
    total = residual.float() + x.float()
    return rms_norm(total, weight, eps), total
