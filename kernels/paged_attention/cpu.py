"""Computes paged attention on a CPU, in register tiles that read the Blocks directly.

A Block holds its keys with the tokens innermost, so one tile gives the scores of `block_size` tokens at once
and no sum runs across a register.
"""

from typing import Any

import numpy as np
import torch

from kernels.compiled import Pointer, inlined, kernel
from kernels.simd import bfloat16_at, exp, float32_at, int8_at, int64_at, load, maximum, prefetch, store, tanh
from kernels.threads import fork
from kernels.tile import ROWS_OF_ONE_REGISTER, multiply_tile, tile_rows

# The number of query vectors that share a KV head and run together; a Block is read once for all of them.
VECTORS_PER_ITEM = 3 * ROWS_OF_ONE_REGISTER


@inlined
def _softmax(
    scores: Pointer, begin: int, low: int, high: int, end: int, scale: np.float32, cap: np.float32
) -> None:
    """Replace the scores at low..high by their weights, and the rest of begin..end by zeros."""
    if cap > 0:
        for index in range(low, high):
            store(scores, index, cap * tanh(load(scores, index) * (scale / cap)))
    else:
        for index in range(low, high):
            store(scores, index, load(scores, index) * scale)
    peak = np.float32(-3e38)
    for index in range(low, high):
        peak = maximum(peak, load(scores, index))
    total = np.float32(0)
    for index in range(low, high):
        weight = exp(load(scores, index) - peak)
        store(scores, index, weight)
        total += weight
    share = np.float32(1) / total
    for index in range(low, high):
        store(scores, index, load(scores, index) * share)
    for index in range(begin, low):
        store(scores, index, 0)
    for index in range(high, end):
        store(scores, index, 0)


@inlined
def _scale_slots(
    is_scaled: bool,
    rows: Pointer,
    start: int,
    num_rows: int,
    width: int,
    scales: Pointer,
    tables: Pointer,
    first_entry: int,
    num_kv_heads: int,
    head: int,
    block_size: int,
) -> None:
    """Multiply each column of `rows` [num_rows, width] by the scale of its Slot."""
    for block in range(width // block_size if is_scaled else 0):
        at = (tables[first_entry + block] * num_kv_heads + head) * block_size
        for row in range(num_rows):
            column = start + row * width + block * block_size
            for slot in range(block_size):
                store(rows, column + slot, load(rows, column + slot) * load(scales, at + slot))


@kernel
def _attend(
    part: int,
    num_parts: int,
    keys: Pointer,
    values: Pointer,
    out: Pointer,
    key_scales: Pointer,
    value_scales: Pointer,
    is_scaled: bool,
    total_rows: int,
    num_items: int,
    table_width: int,
    scratch_width: int,
    query: Pointer,
    tables: Pointer,
    positions: Pointer,
    first_rows: Pointer,
    num_rows: Pointer,
    table_rows: Pointer,
    num_kv_heads: int,
    group: int,
    head_dim: int,
    block_size: int,
    scale: float,
    soft_cap: float,
    window: int,
    scratch: Pointer,
) -> None:
    score_scale, cap = np.float32(scale), np.float32(soft_cap)
    score_rows, mix_rows = tile_rows(block_size), tile_rows(head_dim)
    block_floats = head_dim * block_size
    # With enough items, a part takes all heads of an item, since they lie in the same pages of memory.
    run = num_kv_heads if num_items >= num_parts else 1
    num_tasks = (num_items * num_kv_heads // run - part + num_parts - 1) // num_parts * run
    for nth in range(num_tasks):
        task = (nth // run * num_parts + part) * run + nth % run
        item, head = task // num_kv_heads, task % num_kv_heads
        first, count, table = first_rows[item], num_rows[item], table_rows[item]
        num_vectors = count * group
        context = positions[first + count - 1] + 1
        begin = max(0, positions[first] + 1 - window)
        first_block, end_block = begin // block_size, (context + block_size - 1) // block_size
        width = (end_block - first_block) * block_size
        # This part's scratch: scores [num_vectors, width], then outputs [num_vectors, head_dim].
        scores = part * scratch_width
        mixed = scores + num_vectors * width
        for index in range(scores, mixed + num_vectors * head_dim):
            store(scratch, index, 0)
        query_start = (head * total_rows + first) * group * head_dim
        for block in range(first_block, end_block):
            at = (tables[table * table_width + block] * num_kv_heads + head) * block_floats
            following = tables[table * table_width + min(block + 1, end_block - 1)] * num_kv_heads + head
            prefetch(keys, following * block_floats, block_floats)
            for vector in range(0, num_vectors, score_rows):
                multiply_tile(
                    min(score_rows, num_vectors - vector),
                    block_size,
                    head_dim,
                    scratch,
                    scores + vector * width + (block - first_block) * block_size,
                    width,
                    query,
                    query_start + vector * head_dim,
                    head_dim,
                    keys,
                    at,
                    block_size,
                )
        following = tables[table * table_width + first_block] * num_kv_heads + head
        prefetch(values, following * block_floats, block_floats)
        first_entry = table * table_width + first_block
        _scale_slots(
            is_scaled,
            scratch,
            scores,
            num_vectors,
            width,
            key_scales,
            tables,
            first_entry,
            num_kv_heads,
            head,
            block_size,
        )
        for vector in range(num_vectors):
            position = positions[first + vector // group]
            start = scores + vector * width - first_block * block_size
            low, high = start + max(0, position + 1 - window), start + position + 1
            _softmax(
                scratch, scores + vector * width, low, high, scores + (vector + 1) * width, score_scale, cap
            )
        _scale_slots(
            is_scaled,
            scratch,
            scores,
            num_vectors,
            width,
            value_scales,
            tables,
            first_entry,
            num_kv_heads,
            head,
            block_size,
        )
        for block in range(first_block, end_block):
            at = (tables[table * table_width + block] * num_kv_heads + head) * block_floats
            depth = min(block_size, context - block * block_size)
            following = tables[table * table_width + min(block + 1, end_block - 1)] * num_kv_heads + head
            prefetch(values, following * block_floats, block_floats)
            for vector in range(0, num_vectors, mix_rows):
                multiply_tile(
                    min(mix_rows, num_vectors - vector),
                    head_dim,
                    depth,
                    scratch,
                    mixed + vector * head_dim,
                    head_dim,
                    scratch,
                    scores + vector * width + (block - first_block) * block_size,
                    width,
                    values,
                    at,
                    head_dim,
                )
        for vector in range(num_vectors):
            row = first + vector // group
            target = ((row * num_kv_heads + head) * group + vector % group) * head_dim
            for index in range(head_dim):
                store(out, target + index, load(scratch, mixed + vector * head_dim + index))


Numbers = tuple[int | float, ...]


@inlined
def _typed(numbers: Numbers) -> tuple[Any, ...]:
    """Return the arguments of `_attend` that follow keys, values and result, with typed pointers."""
    (
        key_scales,
        value_scales,
        total_rows,
        num_items,
        table_width,
        scratch_width,
        query,
        tables,
        positions,
        first_rows,
        num_rows,
        table_rows,
        num_kv_heads,
        group,
        head_dim,
        block_size,
        scale,
        soft_cap,
        window,
        scratch,
    ) = numbers
    return (
        float32_at(key_scales),
        float32_at(value_scales),
        key_scales != 0,
        total_rows,
        num_items,
        table_width,
        scratch_width,
        float32_at(query),
        int64_at(tables),
        int64_at(positions),
        int64_at(first_rows),
        int64_at(num_rows),
        int64_at(table_rows),
        num_kv_heads,
        group,
        head_dim,
        block_size,
        scale,
        soft_cap,
        window,
        float32_at(scratch),
    )


@kernel
def _attend_float32(num_parts: int, keys: int, values: int, out: int, numbers: Numbers) -> None:
    fork(_attend, num_parts, (float32_at(keys), float32_at(values), float32_at(out), *_typed(numbers)))


@kernel
def _attend_bfloat16(num_parts: int, keys: int, values: int, out: int, numbers: Numbers) -> None:
    fork(_attend, num_parts, (bfloat16_at(keys), bfloat16_at(values), bfloat16_at(out), *_typed(numbers)))


@kernel
def _attend_mixed(num_parts: int, keys: int, values: int, out: int, numbers: Numbers) -> None:
    fork(_attend, num_parts, (bfloat16_at(keys), bfloat16_at(values), float32_at(out), *_typed(numbers)))


@kernel
def _attend_int8_float32(num_parts: int, keys: int, values: int, out: int, numbers: Numbers) -> None:
    fork(_attend, num_parts, (int8_at(keys), int8_at(values), float32_at(out), *_typed(numbers)))


@kernel
def _attend_int8_bfloat16(num_parts: int, keys: int, values: int, out: int, numbers: Numbers) -> None:
    fork(_attend, num_parts, (int8_at(keys), int8_at(values), bfloat16_at(out), *_typed(numbers)))


# Kernels by dtype of the result and of the cache, each compiled on first use. Arguments are those of
# `paged_attention`, with tensors by their addresses, in the order of `_typed`.
ATTEND = {
    (torch.float32, torch.float32): _attend_float32,
    (torch.bfloat16, torch.bfloat16): _attend_bfloat16,
    (torch.float32, torch.bfloat16): _attend_mixed,
    (torch.float32, torch.int8): _attend_int8_float32,
    (torch.bfloat16, torch.int8): _attend_int8_bfloat16,
}
