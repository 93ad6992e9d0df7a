"""Packs a quantized weight as the kernels read it."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from kernels.gated_rows import check_rows, interleaved
from kernels.quantization import Fp8Weight, Int4Weight, Int8Weight, Nf4Weight, QuantizedWeight
from kernels.quantization.nf4 import BLOCK, NestedScales
from kernels.quantization.shapes import num_bytes

FP8_BLOCKS = (32, 64, 128)  # columns, where not whole rows share a scale


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """Levels with one scale per row, or per row and group of columns; or plain floats, for experts."""

    format: str  # "int8", "int4", "fp8", "nf4"; "plain": not quantized
    data: Tensor  # int8 or uint8 [out_features, in_features], or half of it: bytes of two levels
    scales: Tensor | None  # [out_features, num_groups]; int8 where they are nested; None of floats
    zero_points: Tensor | None = None  # like scales
    nested: NestedScales | None = None
    bias: Tensor | None = None  # [out_features]
    group_size: int = 0  # columns that share a scale; 0: all
    is_gated: bool = False  # rows alternate between gate and up

    @property
    def in_features(self) -> int:
        """The columns of the weight."""
        return self.data.shape[1] * (2 if self.format in {"int4", "nf4"} else 1)

    @property
    def out_features(self) -> int:
        """The rows of the weight; a gated product gives half as many."""
        return self.data.shape[0]

    @property
    def num_groups(self) -> int:
        """The number of scales of a row."""
        return 1 if self.scales is None else self.scales.shape[1]

    @property
    def num_bytes(self) -> int:
        """The bytes of all its tensors."""
        nested = () if self.nested is None else (self.nested.scales, self.nested.offset)
        return num_bytes(self.data, self.scales, self.zero_points, self.bias, *nested)

    def to(self, device: torch.device) -> Self:
        """Return a copy on `device`."""

        def moved(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device)

        nested = self.nested
        if nested is not None:
            nested = NestedScales(
                *(part.to(device) for part in (nested.levels, nested.scales, nested.offset))
            )
        return replace(
            self,
            data=self.data.to(device),
            scales=moved(self.scales),
            zero_points=moved(self.zero_points),
            nested=nested,
            bias=moved(self.bias),
        )


def takes(weight: QuantizedWeight) -> bool:
    """Return whether `pack_linear_weight` takes it: all formats, but only some widths of fp8 blocks."""
    return not isinstance(weight, Fp8Weight) or weight.block[1] in {*FP8_BLOCKS, weight.shape[1]}


def pack_linear_weight(
    weight: QuantizedWeight | Tensor,
    bias: Tensor | None = None,
    *,
    is_gated: bool = False,
    num_experts: int = 1,
) -> LinearWeight:
    """Pack `weight` for `weight_only_linear`; if gated, its first half of rows is gate, its second up.

    With several experts, one expert's rows follow another's, and that order holds within each expert. Raises
    ValueError when fp8 blocks are not 32, 64 or 128 columns or whole rows, when the bias does not fit, or
    when a gated weight has an odd number of rows.
    """
    check_rows("weight_only_linear", weight.shape[0], bias, is_gated=is_gated)
    if isinstance(weight, Nf4Weight) and isinstance(weight.scales, NestedScales) and is_gated:
        # A block of nested scales spans several rows, which the reordering will separate.
        weight = Nf4Weight(weight.packed, weight.scales.dequantize())
    packed = _pack(weight)

    def arranged(tensor: Tensor | None) -> Tensor | None:
        if tensor is None or not is_gated:
            return None if tensor is None else tensor.contiguous()
        return interleaved(tensor, num_experts)

    return replace(
        packed,
        data=interleaved(packed.data, num_experts) if is_gated else packed.data.contiguous(),
        scales=arranged(packed.scales),
        zero_points=arranged(packed.zero_points),
        bias=arranged(bias),
        is_gated=is_gated,
    )


def _pack(weight: QuantizedWeight | Tensor) -> LinearWeight:
    if isinstance(weight, Tensor):
        return LinearWeight("plain", weight, None)
    if isinstance(weight, Int4Weight):
        return LinearWeight(
            "int4", weight.packed, weight.scales, weight.zero_points, group_size=weight.group_size
        )
    if isinstance(weight, Int8Weight):
        zero_points = None if weight.zero_points is None else weight.zero_points.unsqueeze(1)
        return LinearWeight("int8", weight.levels, weight.scales.unsqueeze(1), zero_points)
    if isinstance(weight, Nf4Weight):
        if isinstance(weight.scales, NestedScales):
            return LinearWeight(
                "nf4", weight.packed, weight.scales.levels, nested=weight.scales, group_size=BLOCK
            )
        return LinearWeight("nf4", weight.packed, weight.scales, group_size=BLOCK)
    rows, columns = weight.block
    group_size = 0 if columns == weight.shape[1] else columns
    if not takes(weight):
        raise ValueError(f"weight_only_linear: fp8 blocks of {columns} columns are not supported")
    scales = weight.scales.repeat_interleave(rows, dim=0)[: weight.shape[0]]
    return LinearWeight("fp8", weight.levels.view(torch.uint8), scales, group_size=group_size)
