"""Rounds a weight column by column and compensates each column's error in the columns after it.

Source: Frantar et al., GPTQ, arXiv:2210.17323. Columns go in order of their inputs' size; scales are fixed
beforehand.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.quantization import Fp8Weight, Int4Weight, quantize_fp8
from kernels.quantization.fp8 import LARGEST
from kernels.quantization.int4 import MIDDLE, in_groups, int4_levels, int4_ranges
from kernels.quantization.nibbles import pack_nibbles

DAMPING = 0.01  # share of the mean diagonal that is added to the diagonal: some inputs hardly vary
BLOCK = 128  # columns whose errors are passed on together


def quantize_int4_compensated(weight: Tensor, moments: Tensor, *, group_size: int = 64) -> Int4Weight:
    """Return `weight` [out_features, in_features] in int4, with a small error of products, not of weights.

    `moments` are the mean of `x^T x` over inputs, float32 [in_features, in_features]. Raises ValueError when
    in_features is not a multiple of the group size, or the moments have another size.
    """
    groups = in_groups(weight, group_size)
    _check_moments(weight, moments)
    importance = moments.diagonal().reshape(-1, group_size)
    scales, _ = int4_ranges(groups, importance=importance)
    middle = torch.tensor(float(MIDDLE))
    levels = _compensate(
        weight,
        scales.float().repeat_interleave(group_size, dim=1),
        moments,
        lambda values, steps: int4_levels(values, steps, middle) - MIDDLE,
    )
    return Int4Weight(pack_nibbles((levels + MIDDLE).to(torch.uint8)), scales)


def quantize_fp8_compensated(weight: Tensor, moments: Tensor) -> Fp8Weight:
    """Return `weight` in fp8 with one scale per row; `moments` are as in `quantize_int4_compensated`."""
    nearest = quantize_fp8(weight)
    _check_moments(weight, moments)
    levels = _compensate(
        weight,
        nearest.scales.expand(weight.shape),
        moments,
        lambda values, steps: (values / steps).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).float(),
    )
    return Fp8Weight(levels.to(torch.float8_e4m3fn), nearest.scales, nearest.block)


def _compensate(
    weight: Tensor, steps: Tensor, moments: Tensor, to_levels: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Return the levels, float32 and of the weight's shape; each stands for the value `level * step`."""
    columns = weight.shape[1]
    order = moments.diagonal().argsort(descending=True, stable=True)
    values, steps = weight.float()[:, order], steps[:, order]
    inverse = _inverse_factor(moments[order][:, order])
    levels = torch.empty_like(values)
    for start in range(0, columns, BLOCK):
        end = min(start + BLOCK, columns)
        errors = torch.empty(len(values), end - start)
        for column in range(start, end):
            level = to_levels(values[:, column], steps[:, column])
            levels[:, column] = level
            error = (values[:, column] - level * steps[:, column]) / inverse[column, column]
            values[:, column:end] -= error.unsqueeze(1) * inverse[column, column:end]
            errors[:, column - start] = error
        values[:, end:] -= errors @ inverse[start:end, end:]
    back = torch.empty_like(levels)
    back[:, order] = levels
    return back


def _check_moments(weight: Tensor, moments: Tensor) -> None:
    columns = weight.shape[1]
    if moments.shape != (columns, columns):
        raise ValueError(
            f"compensation: moments are {tuple(moments.shape)}, but the weight has {columns} columns"
        )


def _inverse_factor(moments: Tensor) -> Tensor:
    """Return the upper Cholesky factor of the inverse of the damped moments."""
    damping = DAMPING * moments.diagonal().mean().clamp(min=1e-8)
    damped = moments.double() + damping.double() * torch.eye(len(moments), dtype=torch.float64)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    factor: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor.float()
