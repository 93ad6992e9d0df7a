"""RMS normalisation: checks arguments and chooses the implementation (plain torch on a CPU)."""

import torch.nn.functional as F  # noqa: N812  (the name torch's own documentation uses)
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return `x / sqrt(mean(x^2) + eps) * weight` over the last axis.

    `x` is [num_tokens, hidden] and `weight` [hidden], of one dtype; the mean is taken in float32.
    Raises ValueError when the widths differ. Source: Zhang and Sennrich, arXiv:1910.07467.
    """
    if x.shape[-1:] != weight.shape:
        raise ValueError(f"rms_norm: x is {tuple(x.shape)}, weight {tuple(weight.shape)}")
    return F.rms_norm(x, weight.shape, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add `x` into `residual` in place and return the normalised sum.

    Shapes as in `rms_norm`; `residual` has the shape of `x`.
    """
    if x.shape != residual.shape:
        raise ValueError(f"add_rms_norm: x is {tuple(x.shape)}, residual {tuple(residual.shape)}")
    return rms_norm(residual.add_(x), weight, eps)
