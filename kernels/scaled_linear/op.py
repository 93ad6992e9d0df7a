"""Checks the arguments of 8-bit products and chooses the regime from the GPU's table."""

import torch
from torch import Tensor

from kernels import device
from kernels.crossover import read_crossover
from kernels.quantize_tokens import quantize_tokens
from kernels.scaled_linear.launches import TABLES
from kernels.scaled_linear.weight import ScaledWeight

FORMATS = {torch.int8: "int8", torch.float8_e4m3fn: "fp8"}


def scaled_linear(x: Tensor, weight: ScaledWeight) -> Tensor:
    """Return `x @ weight.T + bias` in the dtype of `x`, [num_tokens, out_features]; half as wide if gated.

    `x` is [num_tokens, in_features], float16 or bfloat16 on a GPU; each token is quantized by its own largest
    value. Sums are in integers for int8, in float32 for fp8. Raises ValueError on anything else.
    """
    if x.dim() != 2 or x.shape[1] != weight.levels.shape[1] or x.stride(1) != 1:
        raise ValueError(
            f"scaled_linear: x is {tuple(x.shape)} with strides {x.stride()}, "
            f"but the weight takes {weight.levels.shape[1]} columns"
        )
    if x.dtype not in {torch.float16, torch.bfloat16} or not device.uses_triton(x):
        raise ValueError(f"scaled_linear: x is {x.dtype} on {x.device}, not 16 bits on a GPU")
    from kernels.scaled_linear import gpu  # noqa: PLC0415  (Triton is there with a GPU only)

    levels, scales = quantize_tokens(x, weight.levels.dtype)
    table = read_crossover(TABLES, device.chip_name(x.device))
    return gpu.run(levels, scales, weight, x.dtype, table.choose(FORMATS[weight.levels.dtype], len(x)))
