"""Packs an 8-bit weight with one scale per row as the kernels read it."""

from dataclasses import dataclass, replace
from typing import Self, TypeGuard

import torch
from torch import Tensor

from kernels.gated_rows import check_rows, interleaved
from kernels.quantization import Fp8Weight, Int8Weight, QuantizedWeight
from kernels.quantization.shapes import num_bytes


@dataclass(frozen=True, slots=True)
class ScaledWeight:
    """An 8-bit weight: levels, one scale per row, and a bias."""

    levels: Tensor  # int8 or float8_e4m3fn [out_features, in_features]
    scales: Tensor  # float32 [out_features]
    bias: Tensor | None  # [out_features]
    is_gated: bool  # rows alternate between gate and up

    @property
    def in_features(self) -> int:
        """The columns of the weight."""
        return self.levels.shape[1]

    @property
    def out_features(self) -> int:
        """The rows of the weight; a gated product gives half as many."""
        return self.levels.shape[0]

    @property
    def num_bytes(self) -> int:
        """The bytes of all its tensors."""
        return num_bytes(self.levels, self.scales, self.bias)

    def to(self, device: torch.device) -> Self:
        """Return a copy on `device`."""
        return replace(
            self,
            levels=self.levels.to(device),
            scales=self.scales.to(device),
            bias=None if self.bias is None else self.bias.to(device),
        )


def has_row_scales(weight: QuantizedWeight) -> TypeGuard[Int8Weight | Fp8Weight]:
    """Return whether `pack_scaled_weight` takes it: 8 bits, scales per whole rows, no zero points."""
    if isinstance(weight, Int8Weight):
        return weight.zero_points is None
    return isinstance(weight, Fp8Weight) and weight.block[1] == weight.shape[1]


def pack_scaled_weight(
    weight: Int8Weight | Fp8Weight, bias: Tensor | None = None, *, is_gated: bool = False
) -> ScaledWeight:
    """Pack `weight` for `scaled_linear`; with `is_gated`, its first half of rows is gate, its second up.

    Raises ValueError when the weight has zero points or several scales per row, when the bias does not fit,
    or when a gated weight has an odd number of rows.
    """
    out_features, in_features = weight.shape
    check_rows("scaled_linear", out_features, bias, is_gated=is_gated)
    if isinstance(weight, Int8Weight):
        if weight.zero_points is not None:
            raise ValueError("scaled_linear: the weight has zero points, which are not supported")
        scales = weight.scales
    else:
        rows, columns = weight.block
        if columns < in_features:
            raise ValueError(
                f"scaled_linear: the weight has a scale for {columns} columns, not for a whole row"
            )
        scales = weight.scales[:, 0].repeat_interleave(rows)[:out_features]

    def arranged(tensor: Tensor) -> Tensor:
        return interleaved(tensor) if is_gated else tensor.contiguous()

    return ScaledWeight(
        arranged(weight.levels), arranged(scales), None if bias is None else arranged(bias), is_gated
    )
