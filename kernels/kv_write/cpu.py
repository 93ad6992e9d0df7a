"""Applies head norms, rotation and cache write on a CPU, in one pass over the fused projection."""

from typing import Any

import numpy as np
import torch

from kernels.compiled import Pointer, inlined, kernel
from kernels.kv_write.rotation import rotate
from kernels.simd import bfloat16_at, copy, float32_at, int8_at, int64_at, load, maximum, store
from kernels.threads import fork, share


@inlined
def _quantize(
    count: int,
    source: Pointer,
    source_start: int,
    target: Pointer,
    target_start: int,
    target_stride: int,
    scales: Pointer,
    scale_at: int,
) -> None:
    """Store a head as int8 with `target_stride` between elements, and its scale; the largest level is 127."""
    largest = np.float32(0)
    for index in range(count):
        largest = maximum(largest, abs(load(source, source_start + index)))
    store(scales, scale_at, largest / np.float32(127))
    inverse = np.float32(127) / largest if largest > 0 else np.float32(0)
    for index in range(count):
        level = load(source, source_start + index) * inverse
        store(target, target_start + index * target_stride, level)


@inlined
def _turn(
    is_normed: bool,
    head_dim: int,
    qkv: Pointer,
    at: int,
    norm: Pointer,
    eps: float,
    angles: Pointer,
    angles_start: int,
    scratch: Pointer,
    normed: int,
    target: Pointer,
    target_start: int,
    target_stride: int,
) -> None:
    """Normalise a head if `is_normed`, and write it rotated into `target`."""
    half = head_dim // 2
    if is_normed:
        squares = np.float32(0)
        for index in range(head_dim):
            squares += load(qkv, at + index) * load(qkv, at + index)
        scale = np.float32(1) / np.sqrt(squares / np.float32(head_dim) + np.float32(eps))
        for index in range(head_dim):
            store(scratch, normed + index, load(qkv, at + index) * scale * load(norm, index))
        rotate(half, scratch, normed, angles, angles_start, target, target_start, target_stride)
    else:
        rotate(half, qkv, at, angles, angles_start, target, target_start, target_stride)


@kernel
def _write(
    part: int,
    num_parts: int,
    qkv: Pointer,
    keys: Pointer,
    values: Pointer,
    key_scales: Pointer,
    value_scales: Pointer,
    is_scaled: bool,
    num_rows: int,
    is_normed: bool,
    angles: Pointer,
    positions: Pointer,
    slots: Pointer,
    query_norm: Pointer,
    key_norm: Pointer,
    eps: float,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    query: Pointer,
    scratch: Pointer,
) -> None:
    group, width = num_heads // num_kv_heads, (num_heads + 2 * num_kv_heads) * head_dim
    normed = 2 * part * head_dim  # this part's place in `scratch`: a normed head, then a rotated one
    rotated = normed + head_dim
    begin, end = share(num_rows, part, num_parts)
    for row in range(begin, end):
        turn = positions[row] * head_dim
        block, offset = slots[row] // block_size, slots[row] % block_size
        for head in range(num_heads):
            at = row * width + head * head_dim
            target = ((head // group * num_rows + row) * group + head % group) * head_dim
            _turn(
                is_normed, head_dim, qkv, at, query_norm, eps, angles, turn, scratch, normed, query, target, 1
            )
        for head in range(num_kv_heads):
            key = row * width + (num_heads + head) * head_dim
            value = key + num_kv_heads * head_dim
            line = block * num_kv_heads + head
            slot = line * block_size + offset
            column = line * head_dim * block_size + offset
            if is_scaled:
                _turn(
                    is_normed,
                    head_dim,
                    qkv,
                    key,
                    key_norm,
                    eps,
                    angles,
                    turn,
                    scratch,
                    normed,
                    scratch,
                    rotated,
                    1,
                )
                _quantize(head_dim, scratch, rotated, keys, column, block_size, key_scales, slot)
                _quantize(head_dim, qkv, value, values, slot * head_dim, 1, value_scales, slot)
            else:
                _turn(
                    is_normed,
                    head_dim,
                    qkv,
                    key,
                    key_norm,
                    eps,
                    angles,
                    turn,
                    scratch,
                    normed,
                    keys,
                    column,
                    block_size,
                )
                copy(head_dim, qkv, value, values, slot * head_dim)


Numbers = tuple[int | float | bool, ...]


@inlined
def _typed(numbers: Numbers) -> tuple[Any, ...]:
    """Return the arguments of `_write` that follow projection, keys and values, with typed pointers."""
    (
        key_scales,
        value_scales,
        num_rows,
        is_normed,
        angles,
        positions,
        slots,
        query_norm,
        key_norm,
        eps,
        num_heads,
        num_kv_heads,
        head_dim,
        block_size,
        query,
        scratch,
    ) = numbers
    return (
        float32_at(key_scales),
        float32_at(value_scales),
        key_scales != 0,
        num_rows,
        is_normed,
        float32_at(angles),
        int64_at(positions),
        int64_at(slots),
        float32_at(query_norm),
        float32_at(key_norm),
        eps,
        num_heads,
        num_kv_heads,
        head_dim,
        block_size,
        float32_at(query),
        float32_at(scratch),
    )


@kernel
def _write_float32(num_parts: int, qkv: int, keys: int, values: int, numbers: Numbers) -> None:
    fork(_write, num_parts, (float32_at(qkv), float32_at(keys), float32_at(values), *_typed(numbers)))


@kernel
def _write_bfloat16(num_parts: int, qkv: int, keys: int, values: int, numbers: Numbers) -> None:
    fork(_write, num_parts, (bfloat16_at(qkv), bfloat16_at(keys), bfloat16_at(values), *_typed(numbers)))


@kernel
def _write_mixed(num_parts: int, qkv: int, keys: int, values: int, numbers: Numbers) -> None:
    fork(_write, num_parts, (float32_at(qkv), bfloat16_at(keys), bfloat16_at(values), *_typed(numbers)))


@kernel
def _write_float32_int8(num_parts: int, qkv: int, keys: int, values: int, numbers: Numbers) -> None:
    fork(_write, num_parts, (float32_at(qkv), int8_at(keys), int8_at(values), *_typed(numbers)))


@kernel
def _write_bfloat16_int8(num_parts: int, qkv: int, keys: int, values: int, numbers: Numbers) -> None:
    fork(_write, num_parts, (bfloat16_at(qkv), int8_at(keys), int8_at(values), *_typed(numbers)))


# Kernels by dtype of the projection and of the cache, each compiled on first use. Arguments are those of
# `rotary_kv_write`, with tensors by their addresses, in the order of `_typed`.
WRITE = {
    (torch.float32, torch.float32): _write_float32,
    (torch.bfloat16, torch.bfloat16): _write_bfloat16,
    (torch.float32, torch.bfloat16): _write_mixed,
    (torch.float32, torch.int8): _write_float32_int8,
    (torch.bfloat16, torch.int8): _write_bfloat16_int8,
}
