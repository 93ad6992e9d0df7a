"""Triton kernels that multiply 16-bit activations with quantized weights.

A weight is `data` [out_features, in_features or half of it] with one scale per row (GROUP 0) or per GROUP
columns of a row. Packed bytes follow `kernels.quantization.nibbles`: the low halves of 16 bytes are 16
neighbouring levels, the high halves the next 16.
"""

import triton
import triton.language as tl

from kernels.epilogue import add_gate_store, tile_of


@triton.jit
def decode(levels, zero, codebook, dtype: tl.constexpr, FORMAT: tl.constexpr):
    """Return levels as exact numbers that are not yet scaled; FORMAT "plain" is not quantized."""
    if FORMAT == "int4":
        # Build the bits of 1024 (float16) or 128 (bfloat16) plus the level, instead of converting integers.
        if dtype == tl.float16:
            value = (levels.to(tl.int16) | 0x6400).to(tl.float16, bitcast=True) - (zero + 1024).to(tl.float16)
        else:
            value = (levels.to(tl.int16) | 0x4300).to(dtype, bitcast=True) - (zero + 128).to(dtype)
    elif FORMAT == "nf4":
        value = tl.load(codebook + levels).to(dtype)
    elif FORMAT == "int8":
        value = (levels.to(tl.int16) - zero).to(dtype)
    elif FORMAT == "plain":
        value = levels.to(dtype)
    else:
        value = levels.to(tl.float8e4nv, bitcast=True).to(dtype)
    return value


@triton.jit
def load_scale(scales, nested_scales, nested_offset, index, mask):
    scale = tl.load(scales + index, mask=mask, other=0.0).to(tl.float32)
    if nested_scales is not None:
        scale = scale * tl.load(nested_scales + index // 256, mask=mask, other=0.0) + tl.load(nested_offset)
    return scale


@triton.jit
def load_zero(zero_points, index, mask, FORMAT: tl.constexpr):
    if zero_points is not None:
        zero = tl.load(zero_points + index, mask=mask, other=0).to(tl.int16)
    else:
        zero = tl.full(index.shape, 8 if FORMAT == "int4" else 0, tl.int16)
    return zero


@triton.jit(do_not_specialize=["num_tokens"])
def gemv(
    x,
    data,
    scales,
    zero_points,
    nested_scales,
    nested_offset,
    codebook,
    bias,
    out,
    num_tokens,
    out_features,
    in_features,
    x_stride,
    num_groups,
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Multiply one token with BLOCK_N rows in each program; float32 lanes are summed once at the end."""
    PACKED: tl.constexpr = FORMAT == "int4" or FORMAT == "nf4"
    SPAN: tl.constexpr = GROUP if GROUP > 0 else BLOCK_K
    GROUPS: tl.constexpr = BLOCK_K // SPAN
    WIDTH: tl.constexpr = SPAN // 2 if PACKED else SPAN
    token = tl.program_id(0)
    row = tl.program_id(1) * BLOCK_N
    rows = row + tl.arange(0, BLOCK_N)
    row_mask = rows < out_features
    lanes = tl.arange(0, WIDTH)
    groups = tl.arange(0, GROUPS)
    x += token.to(tl.int64) * x_stride
    total = tl.zeros((BLOCK_N, GROUPS, WIDTH), tl.float32)
    if GROUP == 0:
        zero = load_zero(zero_points, rows, row_mask, FORMAT)[:, None, None]
    for start in range(0, in_features, BLOCK_K):
        first = start + groups * SPAN
        if GROUP > 0:
            mask = row_mask[:, None] & (first < in_features)[None, :]
            index = rows[:, None] * num_groups + (first // SPAN)[None, :]
            scale = load_scale(scales, nested_scales, nested_offset, index, mask)[:, :, None]
            zero = load_zero(zero_points, index, mask, FORMAT)[:, :, None]
        if PACKED:
            columns = first[:, None] + (lanes // 16 * 32 + lanes % 16)[None, :]
            low_x = tl.load(x + columns, mask=columns < in_features, other=0.0)
            high_x = tl.load(x + columns + 16, mask=columns < in_features, other=0.0)
            bytes_ = first[:, None] // 2 + lanes[None, :]
            place = rows.to(tl.int64)[:, None, None] * (in_features // 2) + bytes_[None, :, :]
            levels = tl.load(
                data + place, mask=row_mask[:, None, None] & (columns < in_features)[None], other=0
            )
            low = decode(levels & 15, zero, codebook, x.dtype.element_ty, FORMAT).to(tl.float32)
            high = decode(levels >> 4, zero, codebook, x.dtype.element_ty, FORMAT).to(tl.float32)
            product = low * low_x.to(tl.float32)[None] + high * high_x.to(tl.float32)[None]
        else:
            columns = first[:, None] + lanes[None, :]
            value = tl.load(x + columns, mask=columns < in_features, other=0.0).to(tl.float32)
            place = rows.to(tl.int64)[:, None, None] * in_features + columns[None, :, :]
            levels = tl.load(
                data + place, mask=row_mask[:, None, None] & (columns < in_features)[None], other=0
            )
            product = decode(levels, zero, codebook, x.dtype.element_ty, FORMAT).to(tl.float32) * value[None]
        total += product * scale if GROUP > 0 else product
    sums = tl.sum(tl.sum(total, 2), 1)
    if GROUP == 0:
        sums *= load_scale(scales, nested_scales, nested_offset, rows, row_mask)
    tokens = token + tl.arange(0, 1)
    add_gate_store(sums[None, :], bias, out, tokens, row, num_tokens, out_features, GATED)


@triton.jit
def accumulate(
    source, token_mask, data, scales, zero_points, nested_scales, nested_offset, codebook,
    rows, row_mask, begin, end, in_features, num_groups,
    dtype: tl.constexpr, FORMAT: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Return the scaled sums [rows, tokens] of columns begin..end; `source` [1, tokens] points at tokens."""
    PACKED: tl.constexpr = FORMAT == "int4" or FORMAT == "nf4"
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    if GROUP == 0:
        zero = load_zero(zero_points, rows, row_mask, FORMAT)[:, None]
    for start in range(begin, end, BLOCK_K):
        if GROUP > 0:
            index = rows * num_groups + start // GROUP
            scale = load_scale(scales, nested_scales, nested_offset, index, row_mask)
            zero = load_zero(zero_points, index, row_mask, FORMAT)[:, None]
        if PACKED:
            lanes = tl.arange(0, BLOCK_K // 2)
            columns = (start + lanes // 16 * 32 + lanes % 16)[:, None]
            low_x = tl.load(source + columns, mask=token_mask, other=0.0)
            high_x = tl.load(source + columns + 16, mask=token_mask, other=0.0)
            place = rows.to(tl.int64)[:, None] * (in_features // 2) + (start // 2 + lanes)[None, :]
            levels = tl.load(data + place, mask=row_mask[:, None], other=0)
            part = tl.dot(decode(levels & 15, zero, codebook, dtype, FORMAT), low_x)
            part = tl.dot(decode(levels >> 4, zero, codebook, dtype, FORMAT), high_x, part)
            total += part * scale[:, None]
        else:
            columns = start + tl.arange(0, BLOCK_K)
            inside = columns < end
            value = tl.load(source + columns[:, None], mask=token_mask & inside[:, None], other=0.0)
            place = rows.to(tl.int64)[:, None] * in_features + columns[None, :]
            levels = tl.load(data + place, mask=row_mask[:, None] & inside[None, :], other=0)
            values = decode(levels, zero, codebook, dtype, FORMAT)
            if GROUP > 0:
                total += tl.dot(values, value) * scale[:, None]
            else:
                total = tl.dot(values, value, total, input_precision="ieee")
    if GROUP == 0 and FORMAT != "plain":
        total *= load_scale(scales, nested_scales, nested_offset, rows, row_mask)[:, None]
    return total


@triton.jit(do_not_specialize=["num_tokens"])
def multiply(
    x,
    data,
    scales,
    zero_points,
    nested_scales,
    nested_offset,
    codebook,
    bias,
    out,
    num_tokens,
    out_features,
    in_features,
    x_stride,
    num_groups,
    split_size,
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
    GATED: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Multiply BLOCK_N rows with BLOCK_M tokens in each program.

    The weight is the left operand because that one may lie in registers. With SPLIT, `out` is float32
    [num_splits, num_tokens, out_features] and `reduce` finishes the product.
    """
    dtype: tl.constexpr = x.dtype.element_ty
    token_tile, row_tile = tile_of()
    row = row_tile * BLOCK_N
    rows = row + tl.arange(0, BLOCK_N)
    row_mask = rows < out_features
    tokens = token_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    token_mask = (tokens < num_tokens)[None, :]
    source = x + tokens.to(tl.int64)[None, :] * x_stride
    begin = tl.program_id(2) * split_size
    end = tl.minimum(begin + split_size, in_features)
    total = accumulate(
        source, token_mask, data, scales, zero_points, nested_scales, nested_offset, codebook,
        rows, row_mask, begin, end, in_features, num_groups,
        dtype, FORMAT, GROUP, BLOCK_M, BLOCK_N, BLOCK_K)  # fmt: skip
    if SPLIT:
        out += tl.program_id(2).to(tl.int64) * num_tokens * out_features
        add_gate_store(tl.trans(total), None, out, tokens, row, num_tokens, out_features, False)
    else:
        add_gate_store(tl.trans(total), bias, out, tokens, row, num_tokens, out_features, GATED)


@triton.jit(do_not_specialize=["num_tokens"])
def reduce(
    partial, bias, out, num_tokens, out_features, num_splits, GATED: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Add the sums of all splits, always in the same order, and finish the product."""
    token = tl.program_id(0)
    row = tl.program_id(1) * BLOCK_N
    rows = row + tl.arange(0, BLOCK_N)
    source = partial + token.to(tl.int64) * out_features + rows
    total = tl.zeros((BLOCK_N,), tl.float32)
    for _ in range(num_splits):
        total += tl.load(source, mask=rows < out_features, other=0.0).to(tl.float32)
        source += num_tokens * out_features
    add_gate_store(total[None, :], bias, out, token + tl.arange(0, 1), row, num_tokens, out_features, GATED)


@triton.jit
def dequantize(
    data,
    scales,
    zero_points,
    nested_scales,
    nested_offset,
    codebook,
    out,
    out_features,
    in_features,
    num_groups,
    FORMAT: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Write BLOCK_K dequantized weights of one row, for a dense product."""
    PACKED: tl.constexpr = FORMAT == "int4" or FORMAT == "nf4"
    dtype: tl.constexpr = out.dtype.element_ty
    row = tl.program_id(0)
    start = tl.program_id(1) * BLOCK_K
    target = out + row.to(tl.int64) * in_features
    lanes = tl.arange(0, BLOCK_K // 2 if PACKED else BLOCK_K)
    columns = start + (lanes // 16 * 32 + lanes % 16 if PACKED else lanes)
    mask = columns < in_features
    index = row * num_groups + columns // GROUP if GROUP > 0 else row + columns * 0
    scale = load_scale(scales, nested_scales, nested_offset, index, mask)
    zero = load_zero(zero_points, index, mask, FORMAT)
    if PACKED:
        levels = tl.load(
            data + row.to(tl.int64) * (in_features // 2) + start // 2 + lanes, mask=mask, other=0
        )
        low = decode(levels & 15, zero, codebook, dtype, FORMAT).to(tl.float32) * scale
        high = decode(levels >> 4, zero, codebook, dtype, FORMAT).to(tl.float32) * scale
        tl.store(target + columns, low.to(dtype), mask=mask)
        tl.store(target + columns + 16, high.to(dtype), mask=mask)
    else:
        levels = tl.load(data + row.to(tl.int64) * in_features + columns, mask=mask, other=0)
        value = decode(levels, zero, codebook, dtype, FORMAT).to(tl.float32) * scale
        tl.store(target + columns, value.to(dtype), mask=mask)
