"""Int8 weights with one scale per output channel, with or without zero points."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.quantization.shapes import SMALLEST_MAXIMUM, check_matrix, check_shape, num_bytes

LARGEST = 127
ELEMENTS_AT_ONCE = 1 << 17  # that are quantized: in float32, so many stay in a cache


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """Int8 weight of values `(level - zero_point) * scale`; raises ValueError on shapes that do not fit."""

    levels: Tensor  # int8 [out_features, in_features]
    scales: Tensor  # float32 [out_features]
    zero_points: Tensor | None = None  # int8 [out_features]; None: all zero

    def __post_init__(self) -> None:
        check_matrix("int8", self.levels)
        check_shape("int8", "scales", self.scales, (len(self.levels),))
        if self.zero_points is not None:
            check_shape("int8", "zero_points", self.zero_points, (len(self.levels),))

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (out_features, in_features)."""
        return self.levels.shape[0], self.levels.shape[1]

    @property
    def num_bytes(self) -> int:
        """The bytes of all its tensors."""
        return num_bytes(self.levels, self.scales, self.zero_points)

    def dequantize(self) -> Tensor:
        """Return the float32 weight [out_features, in_features]."""
        values = self.levels.float()
        if self.zero_points is not None:
            values = values - self.zero_points.float().unsqueeze(1)
        return values * self.scales.unsqueeze(1)


def quantize_int8(weight: Tensor, *, is_symmetric: bool = True) -> Int8Weight:
    """Round `weight` [out_features, in_features] to the nearest levels; raise ValueError if no matrix."""
    check_matrix("int8", weight)
    levels = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scales = torch.empty(len(weight), device=weight.device)
    zero_points = None if is_symmetric else torch.empty(len(weight), dtype=torch.int8, device=weight.device)
    num_rows = max(1, ELEMENTS_AT_ONCE // weight.shape[1])
    for first in range(0, len(weight), num_rows):
        some = slice(first, first + num_rows)
        rows = weight[some].to(torch.float32, copy=True)
        if zero_points is None:
            low, high = rows.aminmax(dim=1)
            scales[some] = torch.maximum(-low, high).clamp(min=SMALLEST_MAXIMUM) / LARGEST
            levels[some] = rows.div_(scales[some].unsqueeze(1)).round_()
            continue
        low, high = rows.amin(dim=1).clamp(max=0), rows.amax(dim=1).clamp(min=0)
        scales[some] = (high - low).clamp(min=SMALLEST_MAXIMUM) / 255
        zeros = (-128 - low / scales[some]).round()
        rows = (rows / scales[some].unsqueeze(1)).round() + zeros.unsqueeze(1)
        levels[some], zero_points[some] = rows.clamp(-128, 127).to(torch.int8), zeros.to(torch.int8)
    return Int8Weight(levels, scales, zero_points)
