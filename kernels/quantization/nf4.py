"""NF4 weights: 16 levels at quantiles of a normal distribution, in blocks of 64; scales may be in int8.

Source: Dettmers et al., QLoRA, arXiv:2305.14314.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.quantization.nibbles import pack_nibbles, unpack_nibbles
from kernels.quantization.shapes import SMALLEST_MAXIMUM, check_matrix, check_shape, num_bytes

BLOCK = 64
NESTED_BLOCK = 256  # of scales, in the order of rows
# Quantiles of N(0, 1) scaled to -1..1, eight at or below zero, nine at or above (the paper's appendix E).
LEVELS = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)


@dataclass(frozen=True, slots=True)
class NestedScales:
    """Int8 scales of values `level * scale + offset`."""

    levels: Tensor  # int8 [out_features, num_blocks]
    scales: Tensor  # float32 [ceil(out_features * num_blocks / 256)]
    offset: Tensor  # float32 [1], the mean of all scales

    def dequantize(self) -> Tensor:
        """Return float32 [out_features, num_blocks]."""
        scales = self.scales.repeat_interleave(NESTED_BLOCK)[: self.levels.numel()]
        return self.levels.float() * scales.view(self.levels.shape) + self.offset


@dataclass(frozen=True, slots=True)
class Nf4Weight:
    """NF4 weight of values `LEVELS[level] * scale`; raises ValueError on shapes that do not fit together."""

    packed: Tensor  # uint8 [out_features, in_features / 2], as `kernels.quantization.nibbles` packs
    scales: Tensor | NestedScales  # float32 [out_features, in_features / 64], each block's largest value

    def __post_init__(self) -> None:
        check_matrix("nf4", self.packed)
        rows, columns = self.shape
        if columns % BLOCK:
            raise ValueError(f"nf4: {columns} columns are not a multiple of {BLOCK}")
        levels = self.scales.levels if isinstance(self.scales, NestedScales) else self.scales
        check_shape("nf4", "scales", levels, (rows, columns // BLOCK))

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (out_features, in_features)."""
        return self.packed.shape[0], 2 * self.packed.shape[1]

    @property
    def num_bytes(self) -> int:
        """The bytes of all its tensors."""
        if isinstance(self.scales, NestedScales):
            return num_bytes(self.packed, self.scales.levels, self.scales.scales, self.scales.offset)
        return num_bytes(self.packed, self.scales)

    def dequantize(self) -> Tensor:
        """Return the float32 weight [out_features, in_features]."""
        scales = self.scales.dequantize() if isinstance(self.scales, NestedScales) else self.scales
        table = torch.tensor(LEVELS, device=self.packed.device)
        values = table[unpack_nibbles(self.packed).long()]
        return values * scales.repeat_interleave(BLOCK, dim=1)


def quantize_nf4(weight: Tensor, *, is_nested: bool = False) -> Nf4Weight:
    """Round `weight` [out_features, in_features] to the nearest levels; `is_nested` quantizes scales too.

    Raises ValueError when it is no matrix, or in_features is not a multiple of 64.
    """
    check_matrix("nf4", weight)
    if weight.shape[1] % BLOCK:
        raise ValueError(f"nf4: {weight.shape[1]} columns are not a multiple of {BLOCK}")
    blocks = weight.float().reshape(len(weight), -1, BLOCK)
    maxima = blocks.abs().amax(dim=2).clamp(min=SMALLEST_MAXIMUM)
    nested = nest_scales(maxima) if is_nested else None
    scales = maxima if nested is None else nested.dequantize().clamp(min=SMALLEST_MAXIMUM)
    table = torch.tensor(LEVELS, device=weight.device)
    borders = (table[1:] + table[:-1]) / 2
    levels = torch.bucketize(blocks / scales.unsqueeze(2), borders).flatten(1)
    return Nf4Weight(pack_nibbles(levels.to(torch.uint8)), maxima if nested is None else nested)


def nest_scales(scales: Tensor) -> NestedScales:
    """Quantize float32 scales [out_features, num_blocks] to int8 in blocks of 256, around their mean."""
    offset = scales.mean().reshape(1)
    centred = (scales - offset).flatten()
    blocks = torch.nn.functional.pad(centred, (0, -len(centred) % NESTED_BLOCK)).view(-1, NESTED_BLOCK)
    steps = blocks.abs().amax(dim=1).clamp(min=SMALLEST_MAXIMUM) / 127
    levels = (blocks / steps.unsqueeze(1)).round().to(torch.int8).flatten()[: len(centred)]
    return NestedScales(levels.view(scales.shape), steps, offset)
