"""Fp8 (e4m3, no infinities), scaled a tensor, a row or a block."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.quantization.shapes import SMALLEST_MAXIMUM, check_matrix, num_bytes

LARGEST = 448.0


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """`level * scale`; raises ValueError on shapes that do not fit together."""

    levels: Tensor  # float8_e4m3fn [out_features, in_features]
    scales: Tensor  # float32, one a block: [ceil(out_features / rows), ceil(in_features / columns)]
    block: tuple[int, int]  # rows and columns that share a scale

    def __post_init__(self) -> None:
        check_matrix("fp8", self.levels)
        expected = tuple(-(-size // step) for size, step in zip(self.levels.shape, self.block, strict=True))
        if tuple(self.scales.shape) != expected:
            raise ValueError(
                f"fp8: scales are {tuple(self.scales.shape)}, blocks of {self.block} need {expected}"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """(out_features, in_features)."""
        return self.levels.shape[0], self.levels.shape[1]

    @property
    def num_bytes(self) -> int:
        """What it takes in memory."""
        return num_bytes(self.levels, self.scales)

    def dequantize(self) -> Tensor:
        """Return the float32 weight [out_features, in_features]."""
        return self.levels.float() * _spread(self.scales, self.block, self.shape)


def quantize_fp8(weight: Tensor, *, block: tuple[int, int] | None = None) -> Fp8Weight:
    """Round `weight` [out_features, in_features] to fp8, `block` rows and columns to a scale.

    None is a scale a row, the weight's own shape one for all of it. A last block may be cut short. Raises
    ValueError when it is no matrix, or a side of the block is under 1 or over the weight's.
    """
    check_matrix("fp8", weight)
    rows, columns = weight.shape
    block = block or (1, columns)
    if not (1 <= block[0] <= rows and 1 <= block[1] <= columns):
        raise ValueError(f"fp8: blocks of {block} for a weight of {(rows, columns)}")
    weight = weight.float()
    padded = torch.nn.functional.pad(weight.abs(), (0, -columns % block[1], 0, -rows % block[0]))
    counts = (padded.shape[0] // block[0], padded.shape[1] // block[1])
    maxima = padded.view(counts[0], block[0], counts[1], block[1]).amax(dim=(1, 3))
    scales = maxima.clamp(min=SMALLEST_MAXIMUM) / LARGEST
    levels = (weight / _spread(scales, block, (rows, columns))).clamp(-LARGEST, LARGEST)
    return Fp8Weight(levels.to(torch.float8_e4m3fn), scales, block)


def _spread(scales: Tensor, block: tuple[int, int], shape: tuple[int, int]) -> Tensor:
    wide = scales.repeat_interleave(block[0], dim=0)[: shape[0]]
    return wide.repeat_interleave(block[1], dim=1)[:, : shape[1]]
