"""Computes attention over an int8 cache on a CPU that multiplies bytes."""

import numpy as np

from kernels.compiled import Pointer, inlined
from kernels.paged_attention.byte_tiles import (
    BLOCK,
    LARGEST_QUERY,
    MOST_MIXED,
    MOST_VECTORS,
    NUM_BYTES,
    UNREAD,
    Lines,
    Rows,
    mix_blocks,
    score_blocks,
    split_query,
    weigh_blocks,
)
from kernels.paged_attention.byte_vectors import HAS_BYTES
from kernels.paged_attention.task import AttentionCall, PlanNumbers, Task, first_hidden, reads, write_mixed
from kernels.product_chain.factors import largest_of
from kernels.simd import LANES, float32_at, int64_at, load, store, tanh

LOG2_E = 1.4426950408889634
MOST_BLOCKS = 4096  # whose products are sure to have a sum in int32


@inlined
def takes(call: AttentionCall) -> bool:
    """Return whether a cache can be read so."""
    return HAS_BYTES and call.key_scales != 0 and call.block_size == BLOCK and call.head_dim % LANES == 0


@inlined
def _lines(
    task: Task, levels: int, scales: int, first: int, end: int, call: AttentionCall, plan: PlanNumbers
) -> Lines:
    table = plan.tables + task.entries * 8
    return Lines(levels, scales, table, first, end, call.num_kv_heads, task.head, call.head_dim)


@inlined
def _score(task: Task, factor: float, call: AttentionCall, plan: PlanNumbers) -> None:
    """Fill the scores with the products of all vectors and all keys, times a factor."""
    scratch, query, head_dim = float32_at(plan.scratch), float32_at(call.query), call.head_dim
    start = (task.head * call.total_rows + task.first_row) * call.group * head_dim
    for vector in range(task.num_vectors):
        target = task.mixed + vector * head_dim
        largest = largest_of(query, start + vector * head_dim, head_dim)
        inverse = np.float32(LARGEST_QUERY) / largest if largest > 0 else np.float32(0)
        split_query(query, start + vector * head_dim, head_dim, plan.scratch + target * 4, inverse)
        step = largest / np.float32(LARGEST_QUERY)
        store(scratch, target + NUM_BYTES * head_dim // 4, step * np.float32(factor))
    lines = _lines(task, call.keys, call.key_scales, task.first_block, task.end_block, call, plan)
    for vector in range(0, task.num_vectors, MOST_VECTORS):
        queries = plan.scratch + (task.mixed + vector * head_dim) * 4
        scores = Rows(plan.scratch + (task.scores + vector * task.width) * 4, task.width * 4)
        count = min(MOST_VECTORS, task.num_vectors - vector)
        score_blocks(count, Rows(queries, head_dim * 4), scores, lines, call.values, call.value_scales)


@inlined
def _cap(task: Task, cap: np.float32, plan: PlanNumbers) -> None:
    """Cap all scores, and bring them to the base 2."""
    scratch, factor = float32_at(plan.scratch), np.float32(cap * LOG2_E)
    for index in range(task.scores, task.scores + task.num_vectors * task.width):
        store(scratch, index, factor * tanh(load(scratch, index) / cap))


@inlined
def _first_read(row: int, window: int, plan: PlanNumbers) -> int:
    """Return the first place of a row's window, all of which it reads but for hidden places."""
    place, hidden = int64_at(plan.places)[row], 0
    if plan.hidden:
        hidden = int64_at(plan.hidden)[row]
    if not hidden:
        whole: int = max(0, place + 1 - window)
        return whole
    last, end, count = place, first_hidden(row, plan), 1
    while count < window and place > end:
        place -= 1
        if reads(hidden, last - place):
            count += 1
    found: int = max(0, place - (window - count))
    return found


@inlined
def _hide(task: Task, plan: PlanNumbers) -> None:
    """Leave no score at the places of a tree that a row does not read."""
    scratch, group = float32_at(plan.scratch), task.num_vectors // task.num_rows
    for index in range(task.num_rows):
        row = task.first_row + index
        last, hidden = int64_at(plan.places)[row], int64_at(plan.hidden)[row]
        for place in range(first_hidden(row, plan), last):
            if not reads(hidden, last - place):
                for head in range(group):
                    start = task.scores + (index * group + head) * task.width
                    store(scratch, start + place - task.first_block * BLOCK, UNREAD)


@inlined
def _weigh(task: Task, call: AttentionCall, plan: PlanNumbers) -> None:
    """Replace the scores by weights, each vector's with what they are worth as the last float of its line."""
    scratch, places = float32_at(plan.scratch), int64_at(plan.places)
    lines = _lines(task, call.values, call.value_scales, task.first_block, task.end_block, call, plan)
    for index in range(task.num_rows):
        row = task.first_row + index
        low, high = _first_read(row, call.window, plan), places[row] + 1
        for vector in range(index * call.group, (index + 1) * call.group):
            start = task.scores + vector * task.width
            worth = weigh_blocks(plan.scratch + start * 4, low, high, lines)
            store(scratch, start + task.width - 1, worth)


@inlined
def _mix(task: Task, call: AttentionCall, plan: PlanNumbers) -> None:
    """Add the values, by their weights, into the outputs of all vectors."""
    line, out_line = task.width * 4, call.head_dim * 4
    for first in range(task.first_block, task.end_block, MOST_BLOCKS):
        end = min(first + MOST_BLOCKS, task.end_block)
        lines = _lines(task, call.values, call.value_scales, first, end, call, plan)
        for vector in range(0, task.num_vectors, MOST_MIXED):
            count = min(MOST_MIXED, task.num_vectors - vector)
            start = plan.scratch + (task.scores + vector * task.width) * 4
            weights = Rows(start + (first - task.first_block) * NUM_BYTES * BLOCK, line)
            worths = Rows(start + line - 4, line)
            out = Rows(plan.scratch + (task.mixed + vector * call.head_dim) * 4, out_line)
            column = 0
            while call.head_dim - column >= 2 * LANES:
                mix_blocks(count, 2, column, weights, worths, out, lines)
                column += 2 * LANES
            if column < call.head_dim:
                mix_blocks(count, 1, column, weights, worths, out, lines)


@inlined
def attend_bytes(task: Task, out: Pointer, call: AttentionCall, plan: PlanNumbers) -> None:
    """Compute a task, of one KV head, as `takes` allows it."""
    scratch, cap = float32_at(plan.scratch), np.float32(call.soft_cap)
    _score(task, call.scale if cap > 0 else call.scale * LOG2_E, call, plan)
    if cap > 0:
        _cap(task, cap, plan)
    if plan.hidden:
        _hide(task, plan)
    _weigh(task, call, plan)
    for index in range(task.mixed, task.mixed + task.num_vectors * call.head_dim):
        store(scratch, index, 0)
    _mix(task, call, plan)
    write_mixed(task, out, call, plan)
