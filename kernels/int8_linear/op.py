"""Int8 product: checks arguments and chooses the implementation (oneDNN from the torch wheel on a CPU)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.int8_linear.cpu import LARGEST, SMALLEST_MAXIMUM, quantize
from kernels.threads import num_threads


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """A weight packed for oneDNN, for any number of tokens."""

    packed: Tensor
    scales: Tensor  # [out_features] float32, of a weight and an activation step together
    zero_points: Tensor  # [out_features] int64, all zero
    in_features: int
    out_features: int


def is_available() -> bool:
    """Whether this torch carries oneDNN."""
    return bool(torch._C._has_mkldnn)  # noqa: SLF001


def pack_int8_weight(weight: Tensor) -> Int8Weight:
    """Quantize `weight` [out_features, in_features] symmetrically, one scale an output channel, and pack it.

    Raises ValueError when it is not a matrix.
    """
    if weight.dim() != 2:
        raise ValueError(f"int8_linear: weight is {tuple(weight.shape)}")
    weight = weight.float()
    scales = weight.abs().amax(dim=1).clamp_(min=SMALLEST_MAXIMUM).div_(LARGEST)
    rounded = (weight / scales.unsqueeze(1)).round_().to(torch.int8)
    return Int8Weight(
        packed=torch.ops.onednn.qlinear_prepack(rounded, None),
        scales=scales / LARGEST,
        zero_points=torch.zeros(len(scales), dtype=torch.int64),
        in_features=weight.shape[1],
        out_features=weight.shape[0],
    )


def int8_linear(x: Tensor, weight: Int8Weight, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return `x @ weight.T + bias`, [num_tokens, out_features] in `dtype`, products summed as integers.

    `x` is [num_tokens, in_features] dense; each token is quantized by its own largest value. `bias` is
    [out_features] float32. The sums are exact, so a row has the same bits in any batch. Raises ValueError on
    shapes that do not fit.
    """
    if x.dim() != 2 or x.shape[1] != weight.in_features or not x.is_contiguous():
        raise ValueError(f"int8_linear: x is {tuple(x.shape)}, weight takes {weight.in_features}")
    num_tokens = x.shape[0]
    # Unsigned with zero point 128: without AMX, oneDNN runs signed activations through a reference loop.
    levels, maxima = torch.empty(x.shape, dtype=torch.uint8), torch.empty(num_tokens)
    quantize(
        num_threads(num_tokens * weight.in_features),
        num_tokens,
        weight.in_features,
        x.data_ptr(),
        x.dtype == torch.bfloat16,
        levels.data_ptr(),
        maxima.data_ptr(),
    )
    product: Tensor = torch.ops.onednn.qlinear_pointwise(
        levels,
        1.0,
        128,
        weight.packed,
        weight.scales,
        weight.zero_points,
        None,
        1.0,
        0,
        torch.float32,
        "none",
        [],
        "",
    )
    product.mul_(maxima.unsqueeze(1))
    if bias is not None:
        product.add_(bias)
    return product.to(dtype)
