"""Computes paged attention on a CPU, in register tiles that read the Blocks directly.

A Block holds its keys with the tokens innermost, so one tile gives the scores of `block_size` tokens at once
and no sum runs across a register.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from kernels.compiled import Pointer, inlined, kernel
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
LAST_BIT = 62  # of a row's hidden places; never set


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


class PlanNumbers(NamedTuple):
    """A Step's plan with its tensors by their addresses; the same for every layer."""

    tables: int
    table_width: int
    places: int
    hidden: int  # 0: every row reads all places before its own
    num_items: int
    first_rows: int  # of the items
    num_rows: int  # of the items
    table_rows: int  # of the items
    scratch: int
    scratch_width: int  # of one part


class AttentionCall(NamedTuple):
    """One layer's call with its tensors by their addresses."""

    query: int
    keys: int
    values: int
    key_scales: int  # 0: the cache is not quantized
    value_scales: int
    out: int
    total_rows: int
    num_kv_heads: int
    group: int
    head_dim: int
    block_size: int
    scale: float
    soft_cap: float  # 0: none
    window: int


class _Task(NamedTuple):
    """One item of one KV head: its vectors, the Blocks that they read, and its place in the scratch."""

    head: int
    first_row: int
    num_vectors: int  # query rows times heads of a group
    context: int  # tokens up to and with those of its last row
    first_block: int
    end_block: int
    end_shared: int  # of the Blocks of which every row reads all places before its own
    entries: int  # where the table of its Sequence begins
    scores: int  # in the scratch: [num_vectors, width]
    width: int
    mixed: int  # in the scratch: [num_vectors, head_dim]


@inlined
def _first_hidden(row: int, plan: PlanNumbers) -> int:
    """Return the first place that a row does not read; its own if it reads all before that."""
    hidden, distance = int64_at(plan.hidden)[row], 0
    while hidden >> distance:
        distance += 1
    place: int = int64_at(plan.places)[row] - distance
    return place


@inlined
def _reads(hidden: int, distance: int) -> bool:
    """Return whether a row reads the place so far before its own."""
    return distance == 0 or not hidden >> min(distance - 1, LAST_BIT) & 1


@inlined
def _task(item: int, head: int, part: int, call: AttentionCall, plan: PlanNumbers) -> _Task:
    places, block_size = int64_at(plan.places), call.block_size
    first, count = int64_at(plan.first_rows)[item], int64_at(plan.num_rows)[item]
    num_vectors = count * call.group
    context = places[first + count - 1] + 1
    end_block = (context + block_size - 1) // block_size
    first_hidden, end_shared = places[first], end_block
    if plan.hidden:
        for row in range(first, first + count):
            if int64_at(plan.hidden)[row]:
                first_hidden = min(first_hidden, _first_hidden(row, plan))
                end_shared = min(end_shared, _first_hidden(row, plan) // block_size)
    # A row's position is at least its first hidden place.
    first_block = max(0, first_hidden + 1 - call.window) // block_size
    width = (end_block - first_block) * block_size
    scores = part * plan.scratch_width
    return _Task(
        head,
        first,
        num_vectors,
        context,
        first_block,
        end_block,
        end_shared,
        int64_at(plan.table_rows)[item] * plan.table_width,
        scores,
        width,
        scores + num_vectors * width,
    )


@inlined
def _line(block: int, task: _Task, call: AttentionCall, plan: PlanNumbers) -> int:
    """Return the place of a head's Block in the cache, counted in heads of Blocks."""
    line: int = int64_at(plan.tables)[task.entries + block] * call.num_kv_heads + task.head
    return line


@inlined
def _score(task: _Task, keys: Pointer, call: AttentionCall, plan: PlanNumbers) -> None:
    """Fill the scores with the products of all vectors and all keys."""
    scratch, query = float32_at(plan.scratch), float32_at(call.query)
    head_dim, block_size = call.head_dim, call.block_size
    rows, block_floats = tile_rows(block_size), head_dim * block_size
    query_start = (task.head * call.total_rows + task.first_row) * call.group * head_dim
    for block in range(task.first_block, task.end_block):
        at = _line(block, task, call, plan) * block_floats
        prefetch(
            keys, _line(min(block + 1, task.end_block - 1), task, call, plan) * block_floats, block_floats
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
def _scale_slots(task: _Task, scales_address: int, end: int, call: AttentionCall, plan: PlanNumbers) -> None:
    """Multiply each column of the scores by the scale of its Slot, if there are scales, up to a Block."""
    scratch, scales, block_size = float32_at(plan.scratch), float32_at(scales_address), call.block_size
    end_block = end if scales_address else task.first_block
    for block in range(task.first_block, end_block):
        at = _line(block, task, call, plan) * block_size
        for row in range(task.num_vectors):
            column = task.scores + row * task.width + (block - task.first_block) * block_size
            for slot in range(block_size):
                store(scratch, column + slot, load(scratch, column + slot) * load(scales, at + slot))


@inlined
def _close_gaps(row: int, start: int, plan: PlanNumbers) -> int:
    """Move a vector's scores of the places that its row reads next to each other; return the last position.

    So the sums over them run as in a Sequence that has no other tokens. `start` is the score of place 0.
    """
    scratch, position = float32_at(plan.scratch), _first_hidden(row, plan)
    last, hidden = int64_at(plan.places)[row], int64_at(plan.hidden)[row]
    for place in range(position, last + 1):
        if _reads(hidden, last - place):
            store(scratch, start + position, load(scratch, start + place))
            position += 1
    return position - 1


@inlined
def _weigh(task: _Task, call: AttentionCall, plan: PlanNumbers) -> None:
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
def _mix(task: _Task, values: Pointer, call: AttentionCall, plan: PlanNumbers) -> None:
    """Add the values, by their weights, into the outputs of all vectors, from the Blocks that they share."""
    scratch, head_dim, block_size = float32_at(plan.scratch), call.head_dim, call.block_size
    rows, block_floats = tile_rows(head_dim), head_dim * block_size
    for block in range(task.first_block, task.end_shared):
        at = _line(block, task, call, plan) * block_floats
        depth = min(block_size, task.context - block * block_size)
        prefetch(
            values, _line(min(block + 1, task.end_block - 1), task, call, plan) * block_floats, block_floats
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
def _mix_paths(task: _Task, values: Pointer, call: AttentionCall, plan: PlanNumbers) -> None:
    """Do as `_mix` in the other Blocks: copy what a row reads, as in a Sequence of these tokens alone."""
    scratch, group, head_dim = float32_at(plan.scratch), call.group, call.head_dim
    block_size, path = call.block_size, task.mixed + task.num_vectors * head_dim
    rows = tile_rows(head_dim)
    for index in range(task.num_vectors // group):
        row, position = task.first_row + index, task.end_shared * block_size
        last, hidden = int64_at(plan.places)[row], int64_at(plan.hidden)[row]
        weights = task.scores + index * group * task.width - task.first_block * block_size
        for place in range(position, last + 1):
            if not _reads(hidden, last - place):
                continue
            slot = _line(place // block_size, task, call, plan) * block_size + place % block_size
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


@inlined
def _write(task: _Task, out: Pointer, call: AttentionCall, plan: PlanNumbers) -> None:
    """Copy the outputs of all vectors into the result."""
    scratch, group, head_dim = float32_at(plan.scratch), call.group, call.head_dim
    for vector in range(task.num_vectors):
        row = task.first_row + vector // group
        target = ((row * call.num_kv_heads + task.head) * group + vector % group) * head_dim
        for index in range(head_dim):
            store(out, target + index, load(scratch, task.mixed + vector * head_dim + index))


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
    task = _task(item, head, part, call, plan)
    for index in range(task.scores, task.mixed + task.num_vectors * call.head_dim):
        store(scratch, index, 0)
    _score(task, keys, call, plan)
    prefetch(values, _line(task.first_block, task, call, plan) * block_floats, block_floats)
    _scale_slots(task, call.key_scales, task.end_block, call, plan)
    _weigh(task, call, plan)
    _scale_slots(task, call.value_scales, task.end_shared, call, plan)
    _mix(task, values, call, plan)
    if task.end_shared < task.end_block:
        _mix_paths(task, values, call, plan)
    _write(task, out, call, plan)


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
