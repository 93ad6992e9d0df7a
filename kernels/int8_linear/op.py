"""Checks the arguments of the int8 product and runs it: oneDNN from the torch wheel on a CPU."""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.int8_linear.cpu import LARGEST, quantize
from kernels.quantization import Int8Weight
from kernels.threads import num_threads


@dataclass(frozen=True, slots=True)
class PackedInt8Weight:
    """A weight packed for oneDNN, for any number of tokens."""

    packed: Tensor
    scales: Tensor  # [out_features] float32, of a weight and an activation step together
    zero_points: Tensor  # [out_features] int64, all zero
    in_features: int
    out_features: int


def is_available() -> bool:
    """Return whether this torch includes oneDNN."""
    return bool(torch._C._has_mkldnn)  # noqa: SLF001


@functools.cache
def is_exact() -> bool:
    """Return whether sums are exact on this processor: on x86 without VNNI, oneDNN adds pairs in 16 bits."""
    levels, weight = torch.full((16, 64), 255, dtype=torch.uint8), torch.full((64, 64), LARGEST)
    packed = pack_int8_weight(Int8Weight(weight.to(torch.int8), torch.full((64,), float(LARGEST))))
    return bool((_product(levels, packed) == 64 * LARGEST**2).all())


def pack_int8_weight(weight: Int8Weight) -> PackedInt8Weight:
    """Pack a symmetric weight; raise ValueError when it has zero points."""
    if weight.zero_points is not None:
        raise ValueError("int8_linear: the weight has zero points, which are not supported")
    out_features, in_features = weight.shape
    return PackedInt8Weight(
        packed=torch.ops.onednn.qlinear_prepack(weight.levels, None),
        scales=weight.scales / LARGEST,
        zero_points=torch.zeros(out_features, dtype=torch.int64),
        in_features=in_features,
        out_features=out_features,
    )


def int8_linear(x: Tensor, weight: PackedInt8Weight, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return `x @ weight.T + bias`, [num_tokens, out_features] in `dtype`, with sums in integers.

    `x` is [num_tokens, in_features] dense; each token is quantized by its own largest value. `bias` is
    [out_features] float32. The sums are exact, so a row has the same bits in any batch. Raises ValueError on
    shapes that do not fit.
    """
    if x.dim() != 2 or x.shape[1] != weight.in_features or not x.is_contiguous():
        raise ValueError(
            f"int8_linear: x is {tuple(x.shape)}, but the weight takes {weight.in_features} columns"
        )
    num_tokens = x.shape[0]
    # Unsigned with zero point 128: without AMX, oneDNN computes signed activations in a slow reference loop.
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
    product = _product(levels, weight).mul_(maxima.unsqueeze(1))
    if bias is not None:
        product.add_(bias)
    return product.to(dtype)


def _product(levels: Tensor, weight: PackedInt8Weight) -> Tensor:
    """Return the product of tokens' levels, 128 for zero; it lacks the factor of each token."""
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
    return product
