"""Launches RMS normalisation on a GPU."""

import torch
import triton
from torch import Tensor

from kernels.rms_norm.kernel import normalise

MAX_HIDDEN = 32768  # a row lies in the registers of one program


def normalised(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Return the normalised rows of `x`, or of `residual + x`, in `dtype`; `residual` then holds the sum.

    `x` is [num_tokens, hidden] with any row stride; `residual` is dense, of the shape of `x` and any floating
    dtype; `weight` is [hidden]. Sums are in float32; the sum is normalised before it is rounded to the dtype
    of `residual`. Raises ValueError on shapes that do not fit.
    """
    num_tokens, hidden = x.shape
    if (
        weight.shape != (hidden,)
        or x.stride(1) != 1
        or hidden > MAX_HIDDEN
        or (residual is not None and (residual.shape != x.shape or not residual.is_contiguous()))
    ):
        raise ValueError(
            f"rms_norm: x is {tuple(x.shape)} with strides {x.stride()}, weight {tuple(weight.shape)}, "
            f"residual {None if residual is None else tuple(residual.shape)}"
        )
    out = torch.empty(num_tokens, hidden, dtype=dtype, device=x.device)
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
            num_warps=num_warps(block),
        )
    return out


def num_warps(block: int) -> int:
    """Return the number of warps that share a row of `block` lanes."""
    return min(max(block // 512, 1), 8)
