"""RMS normalisation on a GPU."""

import torch
import triton
from torch import Tensor

from kernels.rms_norm.kernel import normalise

MAX_HIDDEN = 32768  # a row lies in the registers of one program


def normalised(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Return the normalised rows of `x`, or of `residual + x`, which is left in `residual`, in `dtype`.

    `x` is [num_tokens, hidden], any row stride; `residual` dense, of the shape of `x` and any floating dtype;
    `weight` [hidden]. Sums are in float32, and what is normalised is a sum before it is rounded to the dtype
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
    """Return the warps that share a row of so many lanes."""
    return min(max(block // 512, 1), 8)
