"""RMS normalisation: checks arguments and chooses the implementation."""

import torch
from torch import Tensor

from kernels.rms_norm.cpu import normalise
from kernels.simd import flat
from kernels.threads import num_threads

_NO_RESIDUAL = torch.empty(0)


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None) -> Tensor:
    """Return `x / sqrt(mean(x^2) + eps) * weight` over the last axis, in `dtype` or that of `x`.

    `x` is [num_tokens, hidden] dense, `weight` [hidden] float32; the sums are in float32. Raises ValueError
    when the widths differ. Source: Zhang and Sennrich, arXiv:1910.07467.
    """
    if x.shape[-1:] != weight.shape:
        raise ValueError(f"rms_norm: x is {tuple(x.shape)}, weight {tuple(weight.shape)}")
    out = torch.empty(x.shape, dtype=dtype or x.dtype)
    normalise(num_threads(x.numel()), flat(x), flat(_NO_RESIDUAL), flat(weight), eps, flat(out))
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add `x` into `residual` in place and return the normalised sum in the dtype of `x`.

    Shapes as in `rms_norm`; `residual` is float32 and has the shape of `x`.
    """
    if x.shape != residual.shape:
        raise ValueError(f"add_rms_norm: x is {tuple(x.shape)}, residual {tuple(residual.shape)}")
    if x.shape[-1:] != weight.shape:
        raise ValueError(f"add_rms_norm: x is {tuple(x.shape)}, weight {tuple(weight.shape)}")
    out = torch.empty_like(x)
    normalise(num_threads(x.numel()), flat(x), flat(residual), flat(weight), eps, flat(out))
    return out
