"""Stacks weights that read the same input into one weight."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from kernels.quantization.fp8 import Fp8Weight
from kernels.quantization.int4 import MIDDLE, Int4Weight
from kernels.quantization.int8 import Int8Weight
from kernels.quantization.nf4 import NestedScales, Nf4Weight

QuantizedWeight = Int8Weight | Int4Weight | Fp8Weight | Nf4Weight


def stack_weights(weights: Sequence[QuantizedWeight]) -> QuantizedWeight | None:
    """Return one weight with the rows of all weights in order and the same values.

    Returns None where their formats differ. With more than one weight, fp8 blocks get one scale per row of
    theirs, and nested scales become float32.
    """
    first = weights[0]
    if len(weights) == 1:
        return first
    if any(type(weight) is not type(first) for weight in weights):
        return None
    if isinstance(first, Int8Weight):
        int8 = cast("Sequence[Int8Weight]", weights)
        scales = torch.cat([weight.scales for weight in int8])
        return Int8Weight(torch.cat([weight.levels for weight in int8]), scales, _zero_points(int8, 0))
    if isinstance(first, Int4Weight):
        int4 = cast("Sequence[Int4Weight]", weights)
        if any(weight.group_size != first.group_size for weight in int4):
            return None
        scales = torch.cat([weight.scales for weight in int4])
        return Int4Weight(torch.cat([weight.packed for weight in int4]), scales, _zero_points(int4, MIDDLE))
    if isinstance(first, Fp8Weight):
        fp8 = cast("Sequence[Fp8Weight]", weights)
        if any(weight.block[1] != first.block[1] for weight in fp8):
            return None
        scales = torch.cat(
            [weight.scales.repeat_interleave(weight.block[0], dim=0)[: len(weight.levels)] for weight in fp8]
        )
        return Fp8Weight(torch.cat([weight.levels for weight in fp8]), scales, (1, first.block[1]))
    nf4 = cast("Sequence[Nf4Weight]", weights)
    plain = [
        weight.scales.dequantize() if isinstance(weight.scales, NestedScales) else weight.scales
        for weight in nf4
    ]
    return Nf4Weight(torch.cat([weight.packed for weight in nf4]), torch.cat(plain))


def _zero_points(weights: Sequence[Int8Weight] | Sequence[Int4Weight], none: int) -> Tensor | None:
    """Return all zero points, or None where no weight has any; `none` fills in for weights without."""
    given = [weight.zero_points for weight in weights if weight.zero_points is not None]
    if not given:
        return None
    return torch.cat(
        [
            torch.full(weight.scales.shape, none, dtype=given[0].dtype, device=weight.scales.device)
            if weight.zero_points is None
            else weight.zero_points
            for weight in weights
        ]
    )
