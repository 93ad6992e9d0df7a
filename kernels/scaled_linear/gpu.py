"""Launches 8-bit products on a GPU in a given regime."""

import torch
import triton
from torch import Tensor

from kernels.crossover import Regime
from kernels.scaled_linear import kernel
from kernels.scaled_linear.launches import REDUCE_BLOCK, SWAPPED_UP_TO
from kernels.scaled_linear.weight import ScaledWeight


def run(levels: Tensor, scales: Tensor, weight: ScaledWeight, dtype: torch.dtype, regime: Regime) -> Tensor:
    """Return the product of `kernels.scaled_linear.scaled_linear`."""
    num_tokens = len(levels)
    rows, columns = weight.levels.shape
    out = torch.empty(num_tokens, rows // (1 + weight.is_gated), dtype=dtype, device=levels.device)
    if not num_tokens:
        return out
    num_splits = regime.num_splits(rows, columns)
    split_size = -(-columns // num_splits // 128) * 128 if num_splits > 1 else columns
    num_splits = -(-columns // split_size)
    target = out
    if num_splits > 1:
        sums = torch.int32 if levels.dtype == torch.int8 else torch.float32
        target = torch.empty(num_splits, num_tokens, rows, dtype=sums, device=levels.device)
    kernel.multiply[(triton.cdiv(rows, regime.block_n), triton.cdiv(num_tokens, regime.block_m), num_splits)](
        levels,
        scales,
        weight.levels,
        weight.scales,
        weight.bias,
        target,
        num_tokens,
        rows,
        columns,
        split_size,
        GATED=weight.is_gated,
        SPLIT=num_splits > 1,
        SWAPPED=regime.block_m <= SWAPPED_UP_TO,
        BLOCK_M=regime.block_m,
        BLOCK_N=regime.block_n,
        BLOCK_K=regime.block_k,
        num_warps=regime.num_warps,
        num_stages=regime.num_stages,
    )
    if num_splits > 1:
        kernel.reduce[(num_tokens, triton.cdiv(rows, REDUCE_BLOCK))](
            target,
            scales,
            weight.scales,
            weight.bias,
            out,
            num_tokens,
            rows,
            num_splits,
            GATED=weight.is_gated,
            BLOCK_N=REDUCE_BLOCK,
        )
    return out
