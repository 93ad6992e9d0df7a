"""A quantized weight as the kernels read it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.quantization import Fp8Weight, Int4Weight, Int8Weight, Nf4Weight, QuantizedWeight
from kernels.quantization.nf4 import BLOCK, NestedScales


@dataclass(frozen=True, slots=True)
class LinearWeight:
    """Levels with scales a row, or a row and group of columns."""

    format: str  # "int8", "int4", "fp8", "nf4"
    data: Tensor  # int8 or uint8 [out_features, in_features], or half of it: bytes of two levels
    scales: Tensor  # [out_features, num_groups]; int8 where they are nested
    zero_points: Tensor | None  # like scales
    nested: NestedScales | None
    bias: Tensor | None  # [out_features]
    group_size: int  # columns that share a scale; 0: all
    in_features: int
    is_gated: bool  # rows alternate between gate and up

    @property
    def out_features(self) -> int:
        """Rows of the weight; a gated product gives half as many."""
        return self.data.shape[0]


def pack_linear_weight(
    weight: QuantizedWeight, bias: Tensor | None = None, *, is_gated: bool = False
) -> LinearWeight:
    """Return `weight` for `weight_only_linear`; with `is_gated` its first half of rows is gate, its second up.

    Raises ValueError when fp8 blocks are not 32, 64 or 128 columns or whole rows, the bias does not fit, or
    rows to be gated are odd.
    """
    out_features, in_features = weight.shape
    if bias is not None and bias.shape != (out_features,):
        raise ValueError(f"weight_only_linear: bias is {tuple(bias.shape)}, not {(out_features,)}")
    if is_gated and out_features % 2:
        raise ValueError(f"weight_only_linear: {out_features} rows are no gate and up")
    nested: NestedScales | None = None
    zero_points: Tensor | None = None
    group_size = 0
    match weight:
        case Int8Weight():
            format_, data, scales = "int8", weight.levels, weight.scales.unsqueeze(1)
            zero_points = None if weight.zero_points is None else weight.zero_points.unsqueeze(1)
        case Int4Weight():
            format_, data, scales = "int4", weight.packed, weight.scales
            zero_points, group_size = weight.zero_points, weight.group_size
        case Fp8Weight():
            rows, columns = weight.block
            if columns != in_features:
                group_size = columns
                if columns not in {32, 64, 128}:
                    raise ValueError(f"weight_only_linear: fp8 blocks of {columns} columns")
            format_, data = "fp8", weight.levels.view(torch.uint8)
            scales = weight.scales.repeat_interleave(rows, dim=0)[:out_features]
        case Nf4Weight():
            format_, data, group_size = "nf4", weight.packed, BLOCK
            if isinstance(weight.scales, Tensor):
                scales = weight.scales
            elif is_gated:  # nested scales lie in blocks of several rows, which are about to part
                scales = weight.scales.dequantize()
            else:
                scales, nested = weight.scales.levels, weight.scales

    def arranged(tensor: Tensor) -> Tensor:
        if is_gated:
            tensor = torch.stack(tensor.chunk(2), dim=1).flatten(0, 1)
        return tensor.contiguous()

    return LinearWeight(
        format_,
        arranged(data),
        arranged(scales),
        None if zero_points is None else arranged(zero_points),
        nested,
        None if bias is None else arranged(bias),
        group_size,
        in_features,
        is_gated,
    )
