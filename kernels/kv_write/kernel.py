"""Triton kernel for head norms, rotation, KV quantization and cache write in one pass over the projection.

The projection is fused. A program takes one token and a block of its query, key or value heads.
"""

import triton
import triton.language as tl


@triton.jit
def rotary_kv_write(
    qkv,
    angles,
    positions,
    slots,
    query_norm,
    key_norm,
    eps,
    query,
    blocks,
    scales,
    qkv_stride,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    FORMAT: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    query_programs: tl.constexpr = (NUM_HEADS + BLOCK_HEADS - 1) // BLOCK_HEADS
    index = tl.arange(0, BLOCK_HALF)
    in_half = index < HALF
    turn = angles + tl.load(positions + token).to(tl.int64) * 2 * HALF + index
    row = qkv + token * qkv_stride
    # The grid's second axis: blocks of query heads, then blocks of key heads, then blocks of value heads.
    program = tl.program_id(1)
    if program < query_programs:
        head = program * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
        mask = (head < NUM_HEADS)[:, None] & in_half[None, :]
        at = head[:, None] * 2 * HALF + index[None, :]
        first, second = _load(row + at, mask, query_norm, eps, index, in_half, HALF, HAS_NORMS)
        first, second = _rotate(first, second, turn, in_half, HALF)
        target = query + token * NUM_HEADS * 2 * HALF + at
        tl.store(target, first.to(query.dtype.element_ty), mask=mask)
        tl.store(target + HALF, second.to(query.dtype.element_ty), mask=mask)
    else:
        slot = tl.load(slots + token).to(tl.int64)
        if slot >= 0:
            kv_head = (program - query_programs) * BLOCK_HEADS
            kv_programs: tl.constexpr = (NUM_KV_HEADS + BLOCK_HEADS - 1) // BLOCK_HEADS
            is_key = program < query_programs + kv_programs
            if not is_key:
                kv_head -= kv_programs * BLOCK_HEADS
            head = kv_head + tl.arange(0, BLOCK_HEADS)
            in_heads = head < NUM_KV_HEADS
            mask = in_heads[:, None] & in_half[None, :]
            if is_key:
                at = (NUM_HEADS + head)[:, None] * 2 * HALF + index[None, :]
                first, second = _load(row + at, mask, key_norm, eps, index, in_half, HALF, HAS_NORMS)
                first, second = _rotate(first, second, turn, in_half, HALF)
                _store(blocks, scales, slot, head, in_heads, first, second, index, mask,
                       NUM_KV_HEADS, HALF, BLOCK_SIZE, FORMAT)  # fmt: skip
            else:
                at = (NUM_HEADS + NUM_KV_HEADS + head)[:, None] * 2 * HALF + index[None, :]
                first, second = _load(row + at, mask, key_norm, eps, index, in_half, HALF, False)
                _store(blocks, scales, slot, NUM_KV_HEADS + head, in_heads, first, second, index, mask,
                       NUM_KV_HEADS, HALF, BLOCK_SIZE, FORMAT)  # fmt: skip


@triton.jit
def _load(at, mask, norm, eps, index, in_half, HALF: tl.constexpr, HAS_NORM: tl.constexpr):
    first = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=mask, other=0.0).to(tl.float32)
    if HAS_NORM:
        squares = tl.sum(first * first + second * second, 1)
        scale = tl.rsqrt(squares / (2 * HALF) + eps)[:, None]
        first *= scale * tl.load(norm + index, mask=in_half, other=0.0).to(tl.float32)[None, :]
        second *= scale * tl.load(norm + HALF + index, mask=in_half, other=0.0).to(tl.float32)[None, :]
    return first, second


@triton.jit
def _rotate(first, second, turn, in_half, HALF: tl.constexpr):
    cos = tl.load(turn, mask=in_half, other=0.0)[None, :]
    sin = tl.load(turn + HALF, mask=in_half, other=0.0)[None, :]
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def _store(
    blocks, scales, slot, head, in_heads, first, second, index, mask,
    NUM_KV_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK_SIZE: tl.constexpr, FORMAT: tl.constexpr,
):  # fmt: skip
    # The row in a view of the cache as [num_blocks * 2 * num_kv_heads * block_size, head_dim].
    row = (slot // BLOCK_SIZE * 2 * NUM_KV_HEADS + head) * BLOCK_SIZE + slot % BLOCK_SIZE
    target = blocks + row[:, None] * 2 * HALF + index[None, :]
    if FORMAT == "plain":
        tl.store(target, first.to(blocks.dtype.element_ty), mask=mask)
        tl.store(target + HALF, second.to(blocks.dtype.element_ty), mask=mask)
    else:
        limit: tl.constexpr = 127.0 if FORMAT == "int8" else 448.0
        largest = tl.maximum(tl.max(tl.abs(first), 1), tl.max(tl.abs(second), 1))
        scale = largest / limit
        tl.store(scales + row, scale, mask=in_heads)
        inverse = (limit / tl.where(largest > 0, largest, 1.0))[:, None]
        if FORMAT == "int8":
            tl.store(target, _round(first * inverse).to(tl.int8), mask=mask)
            tl.store(target + HALF, _round(second * inverse).to(tl.int8), mask=mask)
        else:
            tl.store(target, _to_e4m3(first * inverse), mask=mask)
            tl.store(target + HALF, _to_e4m3(second * inverse), mask=mask)


@triton.jit
def _round(x):
    # Floats near 1.5 * 2^23 are integers, so the addition rounds to nearest, ties to even.
    return (x + 12582912.0) - 12582912.0


@triton.jit
def _to_e4m3(x):
    # Computes the bits of float8_e4m3fn for |x| <= 448, since not every chip converts to it.
    bits = x.to(tl.uint32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    # Round to three bits of mantissa, ties to even, and move the exponent's bias from 127 to 7.
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20).to(tl.int32) - (120 << 3)
    subnormal = _round(tl.abs(x) * 512.0).to(tl.int32)
    code = tl.where(tl.abs(x) < 0.015625, subnormal, normal)
    return (code | ((bits >> 24) & 0x80).to(tl.int32)).to(tl.uint8)
