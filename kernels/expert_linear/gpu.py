"""Launches products by expert on a GPU."""

import torch
import triton
from torch import Tensor

from kernels.crossover import Regime
from kernels.expert_linear import kernel
from kernels.expert_linear.launches import block_k, choose
from kernels.expert_linear.weight import ExpertWeights
from kernels.weight_only_linear.gpu import operands


def run(x: Tensor, weight: ExpertWeights, expert_ends: Tensor, regime: Regime | None = None) -> Tensor:
    """Return the product of `kernels.expert_linear.expert_linear`, in the given regime."""
    num_tokens, stacked, rows = len(x), weight.stacked, weight.rows_per_expert
    out = torch.empty(num_tokens, rows // (1 + stacked.is_gated), dtype=x.dtype, device=x.device)
    if not num_tokens:
        return out
    regime = regime or choose(num_tokens, weight.num_experts, x.element_size())
    # Each expert with tokens may have one partial tile.
    num_tiles = triton.cdiv(num_tokens, regime.block_m) + min(num_tokens, weight.num_experts)
    kernel.multiply[triton.cdiv(rows, regime.block_n), num_tiles](
        x,
        *operands(stacked),
        expert_ends,
        out,
        weight.num_experts,
        rows,
        stacked.in_features,
        x.stride(0),
        stacked.num_groups,
        FORMAT=stacked.format,
        GROUP=stacked.group_size,
        GATED=stacked.is_gated,
        BLOCK_M=regime.block_m,
        BLOCK_N=regime.block_n,
        BLOCK_K=block_k(regime, stacked.group_size),
        BLOCK_EXPERTS=triton.next_power_of_2(weight.num_experts),
        num_warps=regime.num_warps,
        num_stages=regime.num_stages,
    )
    return out
