"""Computes attention over an int8 cache on a CPU that multiplies bytes."""

import numpy as np

from kernels.compiled import inlined
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
from kernels.paged_attention.task import AttentionCall, PlanNumbers, Task, first_hidden, reads
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
def score_bytes(task: Task, first: int, end: int, call: AttentionCall, plan: PlanNumbers) -> None:
    """Fill the scores of all vectors for the keys of some Blocks, to the base 2.

    Threads that share a task all write its queries, and write the same.
    """
    scratch, query, head_dim = float32_at(plan.scratch), float32_at(call.query), call.head_dim
    factor = call.scale if call.soft_cap > 0 else call.scale * LOG2_E
    start = (task.head * call.total_rows + task.first_row) * call.group * head_dim
    for vector in range(task.num_vectors):
        target = task.mixed + vector * head_dim
        largest = largest_of(query, start + vector * head_dim, head_dim)
        inverse = np.float32(LARGEST_QUERY) / largest if largest > 0 else np.float32(0)
        split_query(query, start + vector * head_dim, head_dim, plan.scratch + target * 4, inverse)
        step = largest / np.float32(LARGEST_QUERY)
        store(scratch, target + NUM_BYTES * head_dim // 4, step * np.float32(factor))
    lines = _lines(task, call.keys, call.key_scales, first, end, call, plan)
    column = task.scores + (first - task.first_block) * BLOCK
    for vector in range(0, task.num_vectors, MOST_VECTORS):
        queries = plan.scratch + (task.mixed + vector * head_dim) * 4
        scores = Rows(plan.scratch + (column + vector * task.width) * 4, task.width * 4)
        count = min(MOST_VECTORS, task.num_vectors - vector)
        score_blocks(count, Rows(queries, head_dim * 4), scores, lines, call.values, call.value_scales)
    if call.soft_cap > 0:
        for vector in range(task.num_vectors):
            _cap(column + vector * task.width, (end - first) * BLOCK, np.float32(call.soft_cap), plan)


@inlined
def _cap(start: int, count: int, cap: np.float32, plan: PlanNumbers) -> None:
    """Cap scores, and bring them to the base 2."""
    scratch, factor = float32_at(plan.scratch), np.float32(cap * LOG2_E)
    for index in range(start, start + count):
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
def _hide(row: int, start: int, plan: PlanNumbers) -> None:
    """Leave no score at the places of a tree that a row does not read; `start` is the score of place 0."""
    last, hidden = int64_at(plan.places)[row], int64_at(plan.hidden)[row]
    for place in range(first_hidden(row, plan), last):
        if not reads(hidden, last - place):
            store(float32_at(plan.scratch), start + place, UNREAD)


@inlined
def weigh_bytes(task: Task, first: int, end: int, call: AttentionCall, plan: PlanNumbers) -> None:
    """Replace the scores of some vectors by weights; what they are worth is the last float of a line."""
    lines = _lines(task, call.values, call.value_scales, task.first_block, task.end_block, call, plan)
    for vector in range(first, end):
        row, start = task.first_row + vector // call.group, task.scores + vector * task.width
        if plan.hidden:
            _hide(row, start - task.first_block * BLOCK, plan)
        low, high = _first_read(row, call.window, plan), int64_at(plan.places)[row] + 1
        worth = weigh_blocks(plan.scratch + start * 4, low, high, lines)
        store(float32_at(plan.scratch), start + task.width - 1, worth)


@inlined
def mix_bytes(task: Task, first_column: int, end_column: int, call: AttentionCall, plan: PlanNumbers) -> None:
    """Add some columns of the values, by their weights, into the outputs of all vectors."""
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
            column = first_column
            while end_column - column >= 2 * LANES:
                mix_blocks(count, 2, column, weights, worths, out, lines)
                column += 2 * LANES
            if column < end_column:
                mix_blocks(count, 1, column, weights, worths, out, lines)
