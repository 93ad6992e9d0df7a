"""Triton kernel that multiplies tokens, sorted by expert, with the weights of their experts.

The device computes which tile belongs to which expert, so a launch can be recorded in a CUDA graph and
replayed when tokens have chosen other experts.
"""

import triton
import triton.language as tl

from kernels.epilogue import add_gate_store
from kernels.weight_only_linear.kernel import accumulate


@triton.jit
def multiply(
    x,
    data,
    scales,
    zero_points,
    nested_scales,
    nested_offset,
    codebook,
    expert_ends,
    out,
    num_experts,
    rows_per_expert,
    in_features,
    x_stride,
    num_groups,
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
):
    """Multiply, in each program, BLOCK_N rows of one expert with BLOCK_M of its tokens."""
    every = tl.arange(0, BLOCK_EXPERTS)
    is_expert = every < num_experts
    ends = tl.load(expert_ends + every, mask=is_expert, other=0).to(tl.int32)
    starts = tl.load(expert_ends + every - 1, mask=is_expert & (every > 0), other=0).to(tl.int32)
    tile_ends = tl.cumsum((ends - starts + BLOCK_M - 1) // BLOCK_M, 0)
    tile = tl.program_id(1)
    is_before = is_expert & (tile_ends <= tile)
    expert = tl.sum(is_before.to(tl.int32), 0)
    if expert < num_experts:  # there are as many programs as tiles in the worst case
        tile -= tl.max(tl.where(is_before, tile_ends, 0), 0)  # its number within its expert
        first = tl.sum(tl.where(every == expert, starts, 0), 0)
        end = tl.sum(tl.where(every == expert, ends, 0), 0)
        tokens = first + tile * BLOCK_M + tl.arange(0, BLOCK_M)
        row = tl.program_id(0) * BLOCK_N
        rows = row + tl.arange(0, BLOCK_N)
        total = accumulate(
            x + tokens.to(tl.int64)[None, :] * x_stride, (tokens < end)[None, :],
            data, scales, zero_points, nested_scales, nested_offset, codebook,
            expert * rows_per_expert + rows, rows < rows_per_expert, 0, in_features, in_features, num_groups,
            x.dtype.element_ty, FORMAT, GROUP, BLOCK_M, BLOCK_N, BLOCK_K)  # fmt: skip
        add_gate_store(tl.trans(total), None, out, tokens, row, end, rows_per_expert, GATED)
