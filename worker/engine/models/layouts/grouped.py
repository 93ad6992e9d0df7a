"""Converts levels with one scale per group of columns, from any layout, to a format of ours."""

import torch
from torch import Tensor

from kernels.quantization import Int4Weight, Int8Weight
from kernels.quantization.int4 import GROUP_SIZES
from kernels.quantization.nibbles import pack_nibbles


def grouped_weight(
    levels: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    *,
    num_bits: int,
    groups: Tensor | None = None,
) -> Int4Weight | Int8Weight | Tensor:
    """Return `(level - zero_point) * scale` in a format of ours, or as float32 if none can hold it.

    `levels` are uint8 [out_features, in_features], `scales` and `zero_points` [out_features, num_groups].
    `groups` is the group of every column; None: runs of equal length. Raises ValueError if the shapes do not
    fit together.
    """
    rows, columns = levels.shape
    num_groups = scales.shape[1]
    if scales.shape != zero_points.shape or len(scales) != rows or columns % num_groups:
        raise ValueError(
            f"levels {list(levels.shape)}, scales {list(scales.shape)} and zero points "
            f"{list(zero_points.shape)} do not fit together"
        )
    group_size = columns // num_groups
    runs = torch.arange(columns) // group_size
    is_in_runs = groups is None or torch.equal(groups.long(), runs)
    if is_in_runs and num_bits == 4 and group_size in GROUP_SIZES:
        middle = bool((zero_points == 8).all())
        return Int4Weight(
            pack_nibbles(levels.contiguous()),
            scales.contiguous(),
            None if middle else zero_points.to(torch.uint8).contiguous(),
        )
    if is_in_runs and num_bits == 8 and num_groups == 1:
        signed = (levels.to(torch.int16) - 128).to(torch.int8)
        zeros = (zero_points.to(torch.int16) - 128).to(torch.int8).flatten()
        return Int8Weight(signed, scales.float().flatten(), zeros if bool(zeros.any()) else None)
    places = runs if groups is None else groups.long()
    return (levels.float() - zero_points.float()[:, places]) * scales.float()[:, places]
