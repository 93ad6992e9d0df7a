"""Applies head norms, rotation and cache write on a CPU, in one pass over the fused projection."""

from typing import Any, NamedTuple

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


class WriteCall(NamedTuple):
    """All that the parts of one call share, with tensors by their addresses."""

    qkv: int
    keys: int
    values: int
    key_scales: int  # 0: the cache is not quantized
    value_scales: int
    num_rows: int
    angles: int
    positions: int
    slots: int
    query_norm: int  # 0: heads are not normalised
    key_norm: int
    eps: float
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    query: int
    scratch: int


@inlined
def _turn(
    call: WriteCall,
    row: int,
    qkv: Pointer,
    start: int,
    norm_address: int,
    normed: int,
    target: Pointer,
    target_start: int,
    target_stride: int,
) -> None:
    """Write the head at `start`, normalised if there are norms and rotated, into `target`.

    `normed` is the place of a head in the scratch.
    """
    head_dim, angles, scratch = call.head_dim, float32_at(call.angles), float32_at(call.scratch)
    half, turn = head_dim // 2, int64_at(call.positions)[row] * head_dim
    if norm_address:
        norm, squares = float32_at(norm_address), np.float32(0)
        for index in range(head_dim):
            squares += load(qkv, start + index) * load(qkv, start + index)
        scale = np.float32(1) / np.sqrt(squares / np.float32(head_dim) + np.float32(call.eps))
        for index in range(head_dim):
            store(scratch, normed + index, load(qkv, start + index) * scale * load(norm, index))
        rotate(half, scratch, normed, angles, turn, target, target_start, target_stride)
    else:
        rotate(half, qkv, start, angles, turn, target, target_start, target_stride)


@kernel
def write_rows(
    begin: int, end: int, part: int, qkv: Pointer, keys: Pointer, values: Pointer, call: WriteCall
) -> None:
    """Write the rows begin..end by a part, which has its own place in the scratch."""
    num_heads, num_kv_heads, head_dim = call.num_heads, call.num_kv_heads, call.head_dim
    group, width = num_heads // num_kv_heads, (num_heads + 2 * num_kv_heads) * head_dim
    query, scratch, slots = float32_at(call.query), float32_at(call.scratch), int64_at(call.slots)
    key_scales, value_scales = float32_at(call.key_scales), float32_at(call.value_scales)
    normed = 2 * part * head_dim  # this part's place in `scratch`: a normed head, then a rotated one
    rotated = normed + head_dim
    for row in range(begin, end):
        block, offset = slots[row] // call.block_size, slots[row] % call.block_size
        for head in range(num_heads):
            start = row * width + head * head_dim
            target = ((head // group * call.num_rows + row) * group + head % group) * head_dim
            _turn(call, row, qkv, start, call.query_norm, normed, query, target, 1)
        for head in range(num_kv_heads):
            key = row * width + (num_heads + head) * head_dim
            value = key + num_kv_heads * head_dim
            line = block * num_kv_heads + head
            slot = line * call.block_size + offset
            column = line * head_dim * call.block_size + offset
            if call.key_scales:
                _turn(call, row, qkv, key, call.key_norm, normed, scratch, rotated, 1)
                _quantize(head_dim, scratch, rotated, keys, column, call.block_size, key_scales, slot)
                _quantize(head_dim, qkv, value, values, slot * head_dim, 1, value_scales, slot)
            else:
                _turn(call, row, qkv, key, call.key_norm, normed, keys, column, call.block_size)
                copy(head_dim, qkv, value, values, slot * head_dim)


@kernel
def _write(part: int, num_parts: int, qkv: Pointer, keys: Pointer, values: Pointer, call: WriteCall) -> None:
    begin, end = share(call.num_rows, part, num_parts)
    write_rows(begin, end, part, qkv, keys, values, call)


# Numba takes a plain tuple three microseconds faster than a named one.
Numbers = tuple[Any, ...]


@kernel
def _write_float32(num_parts: int, numbers: Numbers) -> None:
    call = WriteCall(*numbers)
    pointers = (float32_at(call.qkv), float32_at(call.keys), float32_at(call.values))
    fork(_write, num_parts, (*pointers, call))


@kernel
def _write_bfloat16(num_parts: int, numbers: Numbers) -> None:
    call = WriteCall(*numbers)
    pointers = (bfloat16_at(call.qkv), bfloat16_at(call.keys), bfloat16_at(call.values))
    fork(_write, num_parts, (*pointers, call))


@kernel
def _write_mixed(num_parts: int, numbers: Numbers) -> None:
    call = WriteCall(*numbers)
    pointers = (float32_at(call.qkv), bfloat16_at(call.keys), bfloat16_at(call.values))
    fork(_write, num_parts, (*pointers, call))


@kernel
def _write_float32_int8(num_parts: int, numbers: Numbers) -> None:
    call = WriteCall(*numbers)
    pointers = (float32_at(call.qkv), int8_at(call.keys), int8_at(call.values))
    fork(_write, num_parts, (*pointers, call))


@kernel
def _write_bfloat16_int8(num_parts: int, numbers: Numbers) -> None:
    call = WriteCall(*numbers)
    pointers = (bfloat16_at(call.qkv), int8_at(call.keys), int8_at(call.values))
    fork(_write, num_parts, (*pointers, call))


# Kernels by dtype of the projection and of the cache, each compiled on first use. They take the number
# of parts and a WriteCall as a plain tuple.
WRITE = {
    (torch.float32, torch.float32): _write_float32,
    (torch.bfloat16, torch.bfloat16): _write_bfloat16,
    (torch.float32, torch.bfloat16): _write_mixed,
    (torch.float32, torch.int8): _write_float32_int8,
    (torch.bfloat16, torch.int8): _write_bfloat16_int8,
}
