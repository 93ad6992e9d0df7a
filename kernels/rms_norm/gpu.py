"""RMS normalisation on a GPU."""

import torch
import triton
from torch import Tensor

from kernels.rms_norm.kernel import normalise

MAX_HIDDEN = 32768  # a row lies in the registers of one program


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return `x / sqrt(mean(x^2) + eps) * weight` over the last axis, in the dtype of `x`.

    `x` is [num_tokens, hidden], any row stride; `weight` [hidden]; sums are in float32. Raises ValueError
    when the widths differ. Source: Zhang and Sennrich, arXiv:1910.07467.
    """
    return _launch(x, None, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add `x` into `residual` in place and return the normalised sum in the dtype of `x`.

    Shapes as in `rms_norm`; `residual` is dense, of the shape of `x` and of any floating dtype. What is
    normalised is the sum before it is rounded to that dtype.
    """
    if x.shape != residual.shape or not residual.is_contiguous():
        raise ValueError(f"add_rms_norm: x is {tuple(x.shape)}, residual {tuple(residual.shape)}")
    return _launch(x, residual, weight, eps)


def _launch(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    num_tokens, hidden = x.shape
    if weight.shape != (hidden,) or x.stride(1) != 1 or hidden > MAX_HIDDEN:
        raise ValueError(
            f"rms_norm: x is {tuple(x.shape)} with strides {x.stride()}, weight {tuple(weight.shape)}"
        )
    out = torch.empty(num_tokens, hidden, dtype=x.dtype, device=x.device)
    if num_tokens:
        block = triton.next_power_of_2(hidden)
        normalise[(num_tokens,)](
            x,
            residual,
            weight,
            out,
            x.stride(0),
            hidden,
            eps,
            HAS_RESIDUAL=residual is not None,
            BLOCK=block,
            num_warps=min(max(block // 512, 1), 16),
        )
    return out
