"""Checks the arguments of RMS normalisation and chooses the implementation."""

import torch
from torch import Tensor

from kernels import device
from kernels.rms_norm.cpu import normalise
from kernels.threads import num_threads


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None) -> Tensor:
    """Return `x / sqrt(mean(x^2) + eps) * weight` over the last axis, in the dtype of `x` or a narrower one.

    `x` is [num_tokens, hidden] dense, `weight` [hidden] float32; the sums are in float32. Raises ValueError
    on shapes that do not fit. Source: Zhang and Sennrich, arXiv:1910.07467.
    """
    return _normalised(x, None, weight, eps, dtype or x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add `x` into `residual` in place and return the normalised sum in the dtype of `x`.

    Shapes as in `rms_norm`; `residual` is float32, dense, and has the shape of `x`.
    """
    if x.shape != residual.shape or residual.dtype != torch.float32 or not residual.is_contiguous():
        raise ValueError(f"add_rms_norm: x is {tuple(x.shape)}, residual {tuple(residual.shape)}")
    return _normalised(x, residual, weight, eps, x.dtype)


def _normalised(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    if device.uses_triton(x):
        from kernels.rms_norm import gpu  # noqa: PLC0415  (Triton is there with a GPU only)

        return gpu.normalised(x, residual, weight, eps, dtype)
    num_rows, width = x.shape
    if weight.shape != (width,) or weight.dtype != torch.float32 or not x.is_contiguous():
        raise ValueError(f"rms_norm: x is {tuple(x.shape)}, weight {tuple(weight.shape)} {weight.dtype}")
    out = torch.empty(num_rows, width, dtype=dtype)
    normalise(
        num_threads(num_rows * width),
        num_rows,
        width,
        x.data_ptr(),
        x.dtype == torch.bfloat16,
        0 if residual is None else residual.data_ptr(),
        weight.data_ptr(),
        eps,
        out.data_ptr(),
        dtype == torch.bfloat16,
    )
    return out
