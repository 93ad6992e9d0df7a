"""Computes paged attention on a CPU, in register tiles that read the Blocks directly.

A Block holds its keys with the tokens innermost, so one tile gives the scores of `block_size` tokens at once
and no sum runs across a register.
"""

from typing import Any

import numpy as np
import torch

from kernels.compiled import Pointer, inlined, kernel
from kernels.paged_attention.bytes import attend_bytes, takes
from kernels.paged_attention.task import (
    AttentionCall,
    PlanNumbers,
    Task,
    first_hidden,
    line_of,
    reads,
    task_of,
    write_mixed,
)
from kernels.simd import (
    bfloat16_at,
    copy,
    exp,
    float32_at,
    int8_at,
    int64_at,
    load,
    maximum,
    prefetch,
    store,
    tanh,
)
from kernels.threads import fork
from kernels.tile import ROWS_OF_ONE_REGISTER, Matrix, multiply_tile, tile_rows

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
def _score(task: Task, keys: Pointer, call: AttentionCall, plan: PlanNumbers) -> None:
    """Fill the scores with the products of all vectors and all keys."""
    scratch, query = float32_at(plan.scratch), float32_at(call.query)
    head_dim, block_size = call.head_dim, call.block_size
    rows, block_floats = tile_rows(block_size), head_dim * block_size
    query_start = (task.head * call.total_rows + task.first_row) * call.group * head_dim
    for block in range(task.first_block, task.end_block):
        at = line_of(block, task, call, plan) * block_floats
        prefetch(
            keys, line_of(min(block + 1, task.end_block - 1), task, call, plan) * block_floats, block_floats
        )
        for vector in range(0, task.num_vectors, rows):
            start = task.scores + vector * task.width + (block - task.first_block) * block_size
            multiply_tile(
                min(rows, task.num_vectors - vector),
                block_size,
                head_dim,
                Matrix(scratch, start, task.width),
                Matrix(query, query_start + vector * head_dim, head_dim),
                Matrix(keys, at, block_size),
            )


@inlined
def _scale_slots(task: Task, scales_address: int, end: int, call: AttentionCall, plan: PlanNumbers) -> None:
    """Multiply each column of the scores by the scale of its Slot, if there are scales, up to a Block."""
    scratch, scales, block_size = float32_at(plan.scratch), float32_at(scales_address), call.block_size
    end_block = end if scales_address else task.first_block
    for block in range(task.first_block, end_block):
        at = line_of(block, task, call, plan) * block_size
        for row in range(task.num_vectors):
            column = task.scores + row * task.width + (block - task.first_block) * block_size
            for slot in range(block_size):
                store(scratch, column + slot, load(scratch, column + slot) * load(scales, at + slot))


@inlined
def _close_gaps(row: int, start: int, plan: PlanNumbers) -> int:
    """Move a vector's scores of the places that its row reads next to each other; return the last position.

    So the sums over them run as in a Sequence that has no other tokens. `start` is the score of place 0.
    """
    scratch, position = float32_at(plan.scratch), first_hidden(row, plan)
    last, hidden = int64_at(plan.places)[row], int64_at(plan.hidden)[row]
    for place in range(position, last + 1):
        if reads(hidden, last - place):
            store(scratch, start + position, load(scratch, start + place))
            position += 1
    return position - 1


@inlined
def _weigh(task: Task, call: AttentionCall, plan: PlanNumbers) -> None:
    """Replace the scores of each vector by the weights of its tokens."""
    scratch, places = float32_at(plan.scratch), int64_at(plan.places)
    scale, cap = np.float32(call.scale), np.float32(call.soft_cap)
    for vector in range(task.num_vectors):
        row = task.first_row + vector // call.group
        position = places[row]
        begin = task.scores + vector * task.width
        start = begin - task.first_block * call.block_size
        if task.end_shared < task.end_block:
            position = _close_gaps(row, start, plan)
        low, high = start + max(0, position + 1 - call.window), start + position + 1
        _softmax(scratch, begin, low, high, begin + task.width, scale, cap)


@inlined
def _mix(task: Task, values: Pointer, call: AttentionCall, plan: PlanNumbers) -> None:
    """Add the values, by their weights, into the outputs of all vectors, from the Blocks that they share."""
    scratch, head_dim, block_size = float32_at(plan.scratch), call.head_dim, call.block_size
    rows, block_floats = tile_rows(head_dim), head_dim * block_size
    for block in range(task.first_block, task.end_shared):
        at = line_of(block, task, call, plan) * block_floats
        depth = min(block_size, task.context - block * block_size)
        prefetch(
            values, line_of(min(block + 1, task.end_block - 1), task, call, plan) * block_floats, block_floats
        )
        for vector in range(0, task.num_vectors, rows):
            weights = task.scores + vector * task.width + (block - task.first_block) * block_size
            multiply_tile(
                min(rows, task.num_vectors - vector),
                head_dim,
                depth,
                Matrix(scratch, task.mixed + vector * head_dim, head_dim),
                Matrix(scratch, weights, task.width),
                Matrix(values, at, head_dim),
            )


@inlined
def _mix_paths(task: Task, values: Pointer, call: AttentionCall, plan: PlanNumbers) -> None:
    """Do as `_mix` in the other Blocks: copy what a row reads, as in a Sequence of these tokens alone."""
    scratch, group, head_dim = float32_at(plan.scratch), call.group, call.head_dim
    block_size, path = call.block_size, task.mixed + task.num_vectors * head_dim
    rows = tile_rows(head_dim)
    for index in range(task.num_vectors // group):
        row, position = task.first_row + index, task.end_shared * block_size
        last, hidden = int64_at(plan.places)[row], int64_at(plan.hidden)[row]
        weights = task.scores + index * group * task.width - task.first_block * block_size
        for place in range(position, last + 1):
            if not reads(hidden, last - place):
                continue
            slot = line_of(place // block_size, task, call, plan) * block_size + place % block_size
            copy(head_dim, values, slot * head_dim, scratch, path + position % block_size * head_dim)
            if call.value_scales:
                for head in range(group):
                    at = weights + head * task.width + position
                    store(scratch, at, load(scratch, at) * load(float32_at(call.value_scales), slot))
            position += 1
            if position % block_size and place < last:
                continue
            begin = (position - 1) // block_size * block_size
            for head in range(0, group, rows):
                multiply_tile(
                    min(rows, group - head),
                    head_dim,
                    position - begin,
                    Matrix(scratch, task.mixed + (index * group + head) * head_dim, head_dim),
                    Matrix(scratch, weights + head * task.width + begin, task.width),
                    Matrix(scratch, path, head_dim),
                )


@kernel
def attend_item(
    item: int,
    head: int,
    part: int,
    keys: Pointer,
    values: Pointer,
    out: Pointer,
    call: AttentionCall,
    plan: PlanNumbers,
) -> None:
    """Compute an item for one KV head, by a part, which has its own place in the scratch."""
    scratch, block_floats = float32_at(plan.scratch), call.head_dim * call.block_size
    task = task_of(item, head, part, call, plan)
    if takes(call):
        attend_bytes(task, out, call, plan)
        return
    for index in range(task.scores, task.mixed + task.num_vectors * call.head_dim):
        store(scratch, index, 0)
    _score(task, keys, call, plan)
    prefetch(values, line_of(task.first_block, task, call, plan) * block_floats, block_floats)
    _scale_slots(task, call.key_scales, task.end_block, call, plan)
    _weigh(task, call, plan)
    _scale_slots(task, call.value_scales, task.end_shared, call, plan)
    _mix(task, values, call, plan)
    if task.end_shared < task.end_block:
        _mix_paths(task, values, call, plan)
    write_mixed(task, out, call, plan)


@kernel
def _attend(
    part: int,
    num_parts: int,
    keys: Pointer,
    values: Pointer,
    out: Pointer,
    call: AttentionCall,
    plan: PlanNumbers,
) -> None:
    num_kv_heads = call.num_kv_heads
    # With enough items, a part takes all heads of an item, since they lie in the same pages of memory.
    run = num_kv_heads if plan.num_items >= num_parts else 1
    num_tasks = (plan.num_items * num_kv_heads // run - part + num_parts - 1) // num_parts * run
    for nth in range(num_tasks):
        number = (nth // run * num_parts + part) * run + nth % run
        attend_item(number // num_kv_heads, number % num_kv_heads, part, keys, values, out, call, plan)


# Numba takes a plain tuple three microseconds faster than a named one.
Numbers = tuple[Any, ...]


@kernel
def _attend_float32(num_parts: int, numbers: Numbers, plan: Numbers) -> None:
    call = AttentionCall(*numbers)
    pointers = (float32_at(call.keys), float32_at(call.values), float32_at(call.out))
    fork(_attend, num_parts, (*pointers, call, PlanNumbers(*plan)))


@kernel
def _attend_bfloat16(num_parts: int, numbers: Numbers, plan: Numbers) -> None:
    call = AttentionCall(*numbers)
    pointers = (bfloat16_at(call.keys), bfloat16_at(call.values), bfloat16_at(call.out))
    fork(_attend, num_parts, (*pointers, call, PlanNumbers(*plan)))


@kernel
def _attend_mixed(num_parts: int, numbers: Numbers, plan: Numbers) -> None:
    call = AttentionCall(*numbers)
    pointers = (bfloat16_at(call.keys), bfloat16_at(call.values), float32_at(call.out))
    fork(_attend, num_parts, (*pointers, call, PlanNumbers(*plan)))


@kernel
def _attend_int8_float32(num_parts: int, numbers: Numbers, plan: Numbers) -> None:
    call = AttentionCall(*numbers)
    pointers = (int8_at(call.keys), int8_at(call.values), float32_at(call.out))
    fork(_attend, num_parts, (*pointers, call, PlanNumbers(*plan)))


@kernel
def _attend_int8_bfloat16(num_parts: int, numbers: Numbers, plan: Numbers) -> None:
    call = AttentionCall(*numbers)
    pointers = (int8_at(call.keys), int8_at(call.values), bfloat16_at(call.out))
    fork(_attend, num_parts, (*pointers, call, PlanNumbers(*plan)))


# Kernels by dtype of the result and of the cache, each compiled on first use. They take the number of
# parts, an AttentionCall and a PlanNumbers, both as plain tuples.
ATTEND = {
    (torch.float32, torch.float32): _attend_float32,
    (torch.bfloat16, torch.bfloat16): _attend_bfloat16,
    (torch.float32, torch.bfloat16): _attend_mixed,
    (torch.float32, torch.int8): _attend_int8_float32,
    (torch.bfloat16, torch.int8): _attend_int8_bfloat16,
}
