"""Triton kernels that multiply 8-bit tokens with 8-bit weights and then scale the sums."""

import triton
import triton.language as tl

from kernels.epilogue import add_gate_store, tile_of


@triton.jit
def finish(tile, x_scales, scales, bias, out, tokens, row, num_tokens, out_features, GATED: tl.constexpr):
    """Scale sums [tokens, rows] whose first row is `row`, then add the bias, gate and store."""
    rows = row + tl.arange(0, tile.shape[1])
    x_scale = tl.load(x_scales + tokens, mask=tokens < num_tokens, other=0.0)
    scale = tl.load(scales + rows, mask=rows < out_features, other=0.0)
    value = tile.to(tl.float32) * x_scale[:, None] * scale[None, :]
    add_gate_store(value, bias, out, tokens, row, num_tokens, out_features, GATED)


@triton.jit(do_not_specialize=["num_tokens"])
def multiply(
    x,
    x_scales,
    weight,
    scales,
    bias,
    out,
    num_tokens,
    out_features,
    in_features,
    split_size,
    GATED: tl.constexpr,
    SPLIT: tl.constexpr,
    SWAPPED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Multiply BLOCK_M tokens with BLOCK_N rows in each program.

    SWAPPED makes the weight the left operand, for few tokens. With SPLIT, `out` is [num_splits, num_tokens,
    out_features] in the dtype of sums, and `reduce` finishes the product.
    """
    token_tile, row_tile = tile_of()
    row = row_tile * BLOCK_N
    rows = row + tl.arange(0, BLOCK_N)
    tokens = token_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    x_rows = x + tokens.to(tl.int64) * in_features
    weight_rows = weight + rows.to(tl.int64) * in_features
    token_mask = tokens < num_tokens
    row_mask = rows < out_features
    SUM: tl.constexpr = tl.int32 if x.dtype.element_ty == tl.int8 else tl.float32
    begin = tl.program_id(2) * split_size
    end = tl.minimum(begin + split_size, in_features)
    if SWAPPED:
        total = tl.zeros((BLOCK_N, BLOCK_M), SUM)
    else:
        total = tl.zeros((BLOCK_M, BLOCK_N), SUM)
    ZERO: tl.constexpr = 0 if x.dtype.element_ty == tl.int8 else 0.0
    for start in range(begin, end, BLOCK_K):
        columns = start + tl.arange(0, BLOCK_K)
        inside = columns < end
        if SWAPPED:
            w = tl.load(
                weight_rows[:, None] + columns[None, :], mask=row_mask[:, None] & inside[None, :], other=ZERO
            )
            a = tl.load(
                x_rows[None, :] + columns[:, None], mask=token_mask[None, :] & inside[:, None], other=ZERO
            )
            total = tl.dot(w, a, total, out_dtype=SUM)
        else:
            a = tl.load(
                x_rows[:, None] + columns[None, :], mask=token_mask[:, None] & inside[None, :], other=ZERO
            )
            w = tl.load(
                weight_rows[None, :] + columns[:, None], mask=row_mask[None, :] & inside[:, None], other=ZERO
            )
            total = tl.dot(a, w, total, out_dtype=SUM)
    if SWAPPED:
        total = tl.trans(total)
    if SPLIT:
        target = out + tl.program_id(2).to(tl.int64) * num_tokens * out_features
        place = tokens.to(tl.int64)[:, None] * out_features + rows[None, :]
        tl.store(target + place, total, mask=token_mask[:, None] & row_mask[None, :])
    else:
        finish(total, x_scales, scales, bias, out, tokens, row, num_tokens, out_features, GATED)


@triton.jit(do_not_specialize=["num_tokens"])
def reduce(
    partial,
    x_scales,
    scales,
    bias,
    out,
    num_tokens,
    out_features,
    num_splits,
    GATED: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Add the sums of all splits, always in the same order, and finish the product."""
    token = tl.program_id(0)
    row = tl.program_id(1) * BLOCK_N
    rows = row + tl.arange(0, BLOCK_N)
    source = partial + token.to(tl.int64) * out_features + rows
    total = tl.zeros((BLOCK_N,), partial.dtype.element_ty)
    for _ in range(num_splits):
        total += tl.load(source, mask=rows < out_features, other=0)
        source += num_tokens * out_features
    tokens = token + tl.arange(0, 1)
    finish(total[None, :], x_scales, scales, bias, out, tokens, row, num_tokens, out_features, GATED)
