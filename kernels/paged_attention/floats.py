"""Computes attention in float32 on a CPU, in register tiles that read the Blocks directly.

A Block holds its keys with the tokens innermost, so one tile gives the scores of `block_size` tokens at once
and no sum runs across a register.
"""

import numpy as np

from kernels.compiled import Pointer, inlined
from kernels.paged_attention.task import AttentionCall, PlanNumbers, Task, first_hidden, line_of, reads
from kernels.simd import copy, exp, float32_at, int64_at, load, maximum, prefetch, store, tanh
from kernels.tile import Matrix, multiply_tile, tile_rows


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
def score_floats(
    task: Task, first: int, end: int, keys: Pointer, values: Pointer, call: AttentionCall, plan: PlanNumbers
) -> None:
    """Fill the scores of all vectors for the keys of some Blocks, and fetch the first values."""
    scratch, query = float32_at(plan.scratch), float32_at(call.query)
    head_dim, block_size = call.head_dim, call.block_size
    rows, block_floats = tile_rows(block_size), head_dim * block_size
    query_start = (task.head * call.total_rows + task.first_row) * call.group * head_dim
    column = task.scores + (first - task.first_block) * block_size
    for vector in range(task.num_vectors):
        for index in range((end - first) * block_size):
            store(scratch, column + vector * task.width + index, 0)
    for block in range(first, end):
        at = line_of(block, task, call, plan) * block_floats
        following = min(block + 1, task.end_block - 1)
        prefetch(keys, line_of(following, task, call, plan) * block_floats, block_floats)
        for vector in range(0, task.num_vectors, rows):
            start = column + vector * task.width + (block - first) * block_size
            multiply_tile(
                min(rows, task.num_vectors - vector),
                block_size,
                head_dim,
                Matrix(scratch, start, task.width),
                Matrix(query, query_start + vector * head_dim, head_dim),
                Matrix(keys, at, block_size),
            )
    prefetch(values, line_of(task.first_block, task, call, plan) * block_floats, block_floats)
    for vector in range(task.num_vectors):
        _scale_slots(task, vector, call.key_scales, first, end, call, plan)


@inlined
def _scale_slots(
    task: Task, vector: int, scales_address: int, first: int, end: int, call: AttentionCall, plan: PlanNumbers
) -> None:
    """Multiply the scores of a vector by the scales of their Slots, if there are scales, for some Blocks."""
    scratch, scales, block_size = float32_at(plan.scratch), float32_at(scales_address), call.block_size
    end_block = end if scales_address else first
    for block in range(first, end_block):
        at = line_of(block, task, call, plan) * block_size
        column = task.scores + vector * task.width + (block - task.first_block) * block_size
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
def weigh_floats(task: Task, first: int, end: int, call: AttentionCall, plan: PlanNumbers) -> None:
    """Replace the scores of some vectors by the weights of their tokens, with the scales of shared values."""
    scratch, places = float32_at(plan.scratch), int64_at(plan.places)
    scale, cap = np.float32(call.scale), np.float32(call.soft_cap)
    for vector in range(first, end):
        row = task.first_row + vector // call.group
        position = places[row]
        begin = task.scores + vector * task.width
        start = begin - task.first_block * call.block_size
        if task.end_shared < task.end_block:
            position = _close_gaps(row, start, plan)
        low, high = start + max(0, position + 1 - call.window), start + position + 1
        _softmax(scratch, begin, low, high, begin + task.width, scale, cap)
        _scale_slots(task, vector, call.value_scales, task.first_block, task.end_shared, call, plan)


@inlined
def mix_floats(
    task: Task, first_column: int, end_column: int, values: Pointer, call: AttentionCall, plan: PlanNumbers
) -> None:
    """Add some columns of the values, by their weights, into the outputs of all vectors.

    Not all columns may be chosen only if every row reads all places before its own.
    """
    scratch, head_dim, block_size = float32_at(plan.scratch), call.head_dim, call.block_size
    num_columns, block_floats = end_column - first_column, head_dim * block_size
    rows = tile_rows(num_columns)
    for block in range(task.first_block, task.end_shared):
        at = line_of(block, task, call, plan) * block_floats
        depth = min(block_size, task.context - block * block_size)
        following = min(block + 1, task.end_block - 1)
        prefetch(values, line_of(following, task, call, plan) * block_floats, block_floats)
        for vector in range(0, task.num_vectors, rows):
            weights = task.scores + vector * task.width + (block - task.first_block) * block_size
            multiply_tile(
                min(rows, task.num_vectors - vector),
                num_columns,
                depth,
                Matrix(scratch, task.mixed + vector * head_dim + first_column, head_dim),
                Matrix(scratch, weights, task.width),
                Matrix(values, at + first_column, head_dim),
            )
    if task.end_shared < task.end_block:
        _mix_paths(task, values, call, plan)


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
