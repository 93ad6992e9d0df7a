"""Fp8 weights (e4m3, no infinities), with one scale per tensor, row or block."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.quantization.shapes import SMALLEST_MAXIMUM, check_matrix, num_bytes

LARGEST = 448.0
# The levels of one octave; a block's largest value may be placed on any of them. The distance between levels
# doubles at powers of two, so the choice changes the error of the other values.
TOP_LEVELS = (448, 416, 384, 352, 320, 288, 256, 240)


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """Fp8 weight of values `level * scale`; raises ValueError on shapes that do not fit together."""

    levels: Tensor  # float8_e4m3fn [out_features, in_features]
    scales: Tensor  # float32, one a block: [ceil(out_features / rows), ceil(in_features / columns)]
    block: tuple[int, int]  # rows and columns that share a scale

    def __post_init__(self) -> None:
        check_matrix("fp8", self.levels)
        expected = tuple(-(-size // step) for size, step in zip(self.levels.shape, self.block, strict=True))
        if tuple(self.scales.shape) != expected:
            raise ValueError(
                f"fp8: scales are {tuple(self.scales.shape)}, but blocks of {self.block} need {expected}"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (out_features, in_features)."""
        return self.levels.shape[0], self.levels.shape[1]

    @property
    def num_bytes(self) -> int:
        """The bytes of all its tensors."""
        return num_bytes(self.levels, self.scales)

    def dequantize(self) -> Tensor:
        """Return the float32 weight [out_features, in_features]."""
        return self.levels.float() * _spread(self.scales, self.block, self.shape)


def quantize_fp8(weight: Tensor, *, block: tuple[int, int] | None = None) -> Fp8Weight:
    """Round `weight` [out_features, in_features] to fp8, with one scale per `block` (rows, columns).

    A `block` of None means one scale per row; the weight's own shape means one scale in all. The last blocks
    may be smaller. Each scale is the one of several candidates with the least squared error. Raises
    ValueError when the weight is no matrix, or a side of the block is under 1 or over the weight's.
    """
    check_matrix("fp8", weight)
    rows, columns = weight.shape
    block = block or (1, columns)
    if not (1 <= block[0] <= rows and 1 <= block[1] <= columns):
        raise ValueError(f"fp8: blocks of {block} do not fit a weight of {(rows, columns)}")
    weight = weight.float()
    maxima = _blocks(weight.abs(), block).amax(dim=(1, 3)).clamp(min=SMALLEST_MAXIMUM)
    scales, least = maxima / LARGEST, torch.full_like(maxima, torch.inf)
    for level in TOP_LEVELS:
        tried = Fp8Weight(_levels(weight, maxima / level, block), maxima / level, block)
        errors = _blocks((tried.dequantize() - weight).square(), block).sum(dim=(1, 3))
        scales = torch.where(errors < least, tried.scales, scales)
        least = torch.minimum(errors, least)
    return Fp8Weight(_levels(weight, scales, block), scales, block)


def _levels(weight: Tensor, scales: Tensor, block: tuple[int, int]) -> Tensor:
    values = weight / _spread(scales, block, (weight.shape[0], weight.shape[1]))
    return values.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)


def _blocks(weight: Tensor, block: tuple[int, int]) -> Tensor:
    """Return the weight as [blocks down, rows, blocks across, columns], padded with zeros."""
    padded = torch.nn.functional.pad(weight, (0, -weight.shape[1] % block[1], 0, -weight.shape[0] % block[0]))
    return padded.view(padded.shape[0] // block[0], block[0], -1, block[1])


def _spread(scales: Tensor, block: tuple[int, int], shape: tuple[int, int]) -> Tensor:
    wide = scales.repeat_interleave(block[0], dim=0)[: shape[0]]
    return wide.repeat_interleave(block[1], dim=1)[:, : shape[1]]
