"""Int4 weights in groups along a row; each group has a scale and optionally a zero point."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.quantization.nibbles import pack_nibbles, unpack_nibbles
from kernels.quantization.shapes import SMALLEST_MAXIMUM, check_matrix, check_shape, num_bytes

GROUP_SIZES = (32, 64, 128)
MIDDLE = 8  # the level that means zero where there are no zero points
# A symmetric range may end at one of these shares of the largest value: clipping that value can reduce the
# error of the others.
CLIPS = tuple(1 - step / 40 for step in range(13))


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """Int4 weight of values `(level - zero_point) * scale`; raises ValueError on shapes that do not fit."""

    packed: Tensor  # uint8 [out_features, in_features / 2], as `kernels.quantization.nibbles` packs
    scales: Tensor  # bfloat16, float16 or float32 [out_features, num_groups]
    zero_points: Tensor | None = None  # uint8 [out_features, num_groups]; None: all 8

    def __post_init__(self) -> None:
        check_matrix("int4", self.packed)
        rows, columns = self.shape
        num_groups = self.scales.shape[-1]
        check_shape("int4", "scales", self.scales, (rows, num_groups))
        if columns % num_groups or self.group_size not in GROUP_SIZES:
            raise ValueError(
                f"int4: {columns} columns in {num_groups} groups; a group has one of {GROUP_SIZES}"
            )
        if self.zero_points is not None:
            check_shape("int4", "zero_points", self.zero_points, (rows, num_groups))

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (out_features, in_features)."""
        return self.packed.shape[0], 2 * self.packed.shape[1]

    @property
    def group_size(self) -> int:
        """The number of weights that share a scale."""
        return self.shape[1] // self.scales.shape[1]

    @property
    def num_bytes(self) -> int:
        """The bytes of all its tensors."""
        return num_bytes(self.packed, self.scales, self.zero_points)

    def dequantize(self) -> Tensor:
        """Return the float32 weight [out_features, in_features]."""
        levels = unpack_nibbles(self.packed).float().view(*self.scales.shape, -1)
        zero_points = MIDDLE if self.zero_points is None else self.zero_points.float().unsqueeze(2)
        values: Tensor = (levels - zero_points) * self.scales.float().unsqueeze(2)
        return values.flatten(1)


def quantize_int4(
    weight: Tensor,
    *,
    group_size: int = 64,
    is_symmetric: bool = True,
    scale_dtype: torch.dtype = torch.bfloat16,
) -> Int4Weight:
    """Round `weight` [out_features, in_features] to the nearest levels of each group's range.

    Raises ValueError when it is no matrix, `group_size` is not 32, 64 or 128, or does not divide in_features.
    """
    groups = in_groups(weight, group_size)
    scales, zero_points = int4_ranges(groups, is_symmetric=is_symmetric, scale_dtype=scale_dtype)
    levels = int4_levels(groups, scales.unsqueeze(2), zero_points.unsqueeze(2)).flatten(1)
    packed = pack_nibbles(levels.to(torch.uint8))
    return Int4Weight(packed, scales, None if is_symmetric else zero_points.to(torch.uint8))


def in_groups(weight: Tensor, group_size: int) -> Tensor:
    """Return float32 [out_features, num_groups, group_size]; raise ValueError if `weight` does not fit."""
    check_matrix("int4", weight)
    if group_size not in GROUP_SIZES or weight.shape[1] % group_size:
        raise ValueError(
            f"int4: {weight.shape[1]} columns in groups of {group_size}; a group has one of {GROUP_SIZES}"
        )
    return weight.float().reshape(len(weight), -1, group_size)


def int4_levels(values: Tensor, scales: Tensor, zero_points: Tensor) -> Tensor:
    """Return the nearest levels 0..15 as float32; the arguments broadcast."""
    return ((values / scales.float()).round() + zero_points).clamp(0, 15)


def int4_ranges(
    groups: Tensor,
    *,
    is_symmetric: bool = True,
    scale_dtype: torch.dtype = torch.bfloat16,
    importance: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return scales and float32 zero points, each [...], of `groups` [..., group_size].

    The sign of a symmetric scale puts the value farthest from zero on level 0, which lies one step farther
    out than level 15; its size is the one of several candidates with the least squared error. `importance`
    weighs those errors; it must broadcast against `groups`.
    """
    if not is_symmetric:
        low, high = groups.amin(dim=-1).clamp(max=0), groups.amax(dim=-1).clamp(min=0)
        scales = ((high - low).clamp(min=SMALLEST_MAXIMUM) / 15).to(scale_dtype)
        return scales, (-low / scales.float()).round().clamp(0, 15)
    farthest = groups.gather(-1, groups.abs().argmax(dim=-1, keepdim=True)).squeeze(-1)
    farthest = torch.where(farthest.abs() < SMALLEST_MAXIMUM, SMALLEST_MAXIMUM, farthest)
    zero_points = torch.full_like(farthest, MIDDLE)
    best = torch.full_like(farthest, torch.inf)
    scales = torch.zeros_like(farthest, dtype=scale_dtype)
    for clip in CLIPS:
        tried = (farthest * (-clip / MIDDLE)).to(scale_dtype)
        scale = tried.float().unsqueeze(-1)
        back = (int4_levels(groups, scale, zero_points.unsqueeze(-1)) - MIDDLE) * scale
        error = (back - groups).square()
        error = (error if importance is None else error * importance).sum(dim=-1)
        scales = torch.where(error < best, tried, scales)
        best = torch.minimum(error, best)
    return scales, zero_points
