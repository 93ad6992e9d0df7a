"""Keys or values in int8 or fp8, with one scale per token and head."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.quantization.shapes import SMALLEST_MAXIMUM, num_bytes

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}


@dataclass(frozen=True, slots=True)
class QuantizedHeads:
    """Quantized keys or values, each `level * scale`."""

    levels: Tensor  # int8 or float8_e4m3fn [num_tokens, num_heads, head_dim]
    scales: Tensor  # float32 [num_tokens, num_heads]

    @property
    def num_bytes(self) -> int:
        """The bytes of all its tensors."""
        return num_bytes(self.levels, self.scales)

    def dequantize(self) -> Tensor:
        """Return float32 [num_tokens, num_heads, head_dim]."""
        return self.levels.float() * self.scales.unsqueeze(2)


def quantize_heads(x: Tensor, dtype: torch.dtype = torch.int8) -> QuantizedHeads:
    """Round `x` [num_tokens, num_heads, head_dim] to levels of `dtype`, int8 or float8_e4m3fn.

    Raises ValueError on other shapes and dtypes.
    """
    if dtype not in LARGEST:
        raise ValueError(f"quantize_heads: dtype is {dtype}, not int8 or float8_e4m3fn")
    if x.dim() != 3:
        raise ValueError(f"quantize_heads: x is {tuple(x.shape)}, not [num_tokens, num_heads, head_dim]")
    x = x.float()
    scales = x.abs().amax(dim=2).clamp(min=SMALLEST_MAXIMUM) / LARGEST[dtype]
    values = (x / scales.unsqueeze(2)).clamp(-LARGEST[dtype], LARGEST[dtype])
    return QuantizedHeads((values.round() if dtype == torch.int8 else values).to(dtype), scales)
