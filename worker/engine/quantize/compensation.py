"""Rounds a weight to int4 column by column, each column's error taken up by those still to come.

Source: Frantar et al., GPTQ, arXiv:2210.17323; columns in order of their inputs' size, scales fixed before.
"""

import torch
from torch import Tensor

from kernels.quantization import Int4Weight
from kernels.quantization.int4 import in_groups, int4_levels, int4_ranges
from kernels.quantization.nibbles import pack_nibbles

DAMPING = 0.01  # of the mean diagonal, added to all of it: some inputs hardly vary
BLOCK = 128  # columns whose errors are carried on together


def quantize_int4_compensated(weight: Tensor, moments: Tensor, *, group_size: int = 64) -> Int4Weight:
    """Return `weight` [out_features, in_features] in int4, so that products change little, not weights.

    `moments` are the mean of `x^T x` over inputs, float32 [in_features, in_features]. Raises ValueError when
    in_features are not whole groups, or the moments are of another size.
    """
    groups = in_groups(weight, group_size)
    rows, columns = weight.shape
    if moments.shape != (columns, columns):
        raise ValueError(f"int4: moments are {tuple(moments.shape)}, weight has {columns} columns")
    diagonal = moments.diagonal()
    scales, _ = int4_ranges(groups, importance=diagonal.reshape(-1, group_size))
    order = diagonal.argsort(descending=True, stable=True)
    values = weight.float()[:, order]
    steps = scales.float().repeat_interleave(group_size, dim=1)[:, order]
    inverse = _inverse_factor(moments[order][:, order])
    levels = torch.empty(rows, columns)
    for start in range(0, columns, BLOCK):
        end = min(start + BLOCK, columns)
        errors = torch.empty(rows, end - start)
        for column in range(start, end):
            step = steps[:, column]
            level = int4_levels(values[:, column], step, torch.tensor(8.0))
            levels[:, column] = level
            error = (values[:, column] - (level - 8) * step) / inverse[column, column]
            values[:, column:end] -= error.unsqueeze(1) * inverse[column, column:end]
            errors[:, column - start] = error
        values[:, end:] -= errors @ inverse[start:end, end:]
    back = torch.empty_like(levels)
    back[:, order] = levels
    return Int4Weight(pack_nibbles(back.to(torch.uint8)), scales)


def _inverse_factor(moments: Tensor) -> Tensor:
    """Return the upper Cholesky factor of the inverse."""
    damping = DAMPING * moments.diagonal().mean().clamp(min=1e-8)
    damped = moments.double() + damping.double() * torch.eye(len(moments), dtype=torch.float64)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    factor: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor.float()
