"""Launches the quantization of tokens on a GPU."""

import torch
import triton
from torch import Tensor

from kernels.quantize_tokens.formats import LARGEST
from kernels.quantize_tokens.kernel import quantize

MAX_WIDTH = 32768  # a row lies in the registers of one program


def quantize_tokens(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the levels of `x` in `dtype`, and one float32 scale per row, [num_tokens, 1]."""
    num_tokens, width = x.shape
    if width > MAX_WIDTH:
        raise ValueError(
            f"quantize_tokens: x is {tuple(x.shape)}; its rows may have at most {MAX_WIDTH} elements"
        )
    levels = torch.empty(num_tokens, width, dtype=dtype, device=x.device)
    scales = torch.empty(num_tokens, 1, dtype=torch.float32, device=x.device)
    if x.numel():
        block = triton.next_power_of_2(width)
        num_warps = min(max(block // 512, 1), 16)
        quantize[(num_tokens,)](
            x, levels, scales, x.stride(0), width, LARGEST=LARGEST[dtype], BLOCK=block, num_warps=num_warps
        )
    return levels, scales
