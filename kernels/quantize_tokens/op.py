"""Checks the arguments of token quantization and chooses the implementation."""

import torch
from torch import Tensor

from kernels import device
from kernels.quantize_tokens import reference
from kernels.quantize_tokens.formats import LARGEST


def quantize_tokens(x: Tensor, dtype: torch.dtype = torch.int8) -> tuple[Tensor, Tensor]:
    """Return levels in `dtype` (int8 or float8_e4m3fn) and float32 scales [num_tokens, 1]: x ~ level * scale.

    `x` is [num_tokens, width] with a dense last axis. A token's largest value becomes the largest level. The
    scale of a token with a NaN is NaN. Raises ValueError on other dtypes and shapes.
    """
    if dtype not in LARGEST:
        raise ValueError(f"quantize_tokens: dtype is {dtype}, not int8 or float8_e4m3fn")
    if x.dim() != 2 or x.stride(1) != 1:
        raise ValueError(f"quantize_tokens: x is {tuple(x.shape)} with strides {x.stride()}")
    if device.uses_triton(x):
        from kernels.quantize_tokens import gpu  # noqa: PLC0415  (Triton is there with a GPU only)

        return gpu.quantize_tokens(x, dtype)
    return reference.quantize_tokens(x, dtype)
