"""Says what the attention of one head is computed from on a CPU, and where that lies in memory."""

from typing import NamedTuple

from kernels.compiled import Pointer, inlined
from kernels.simd import float32_at, int64_at, load, store

LAST_BIT = 62  # of a row's hidden places; never set


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
    scratch_width: int  # of one place


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


class Task(NamedTuple):
    """One item of one KV head: its vectors, the Blocks that they read, and its place in the scratch."""

    head: int
    first_row: int
    num_rows: int
    num_vectors: int  # query rows times heads of a group
    context: int  # tokens up to and with those of its last row
    first_block: int
    end_block: int
    end_shared: int  # of the Blocks of which every row reads all places before its own
    entries: int  # where the table of its Sequence begins
    scores: int  # in the scratch: [num_vectors, width]
    width: int
    mixed: int  # in the scratch: [num_vectors, head_dim]; until values are mixed, queries as bytes


@inlined
def first_hidden(row: int, plan: PlanNumbers) -> int:
    """Return the first place that a row does not read; its own if it reads all before that."""
    hidden, distance = int64_at(plan.hidden)[row], 0
    while hidden >> distance:
        distance += 1
    place: int = int64_at(plan.places)[row] - distance
    return place


@inlined
def reads(hidden: int, distance: int) -> bool:
    """Return whether a row reads the place so far before its own."""
    return distance == 0 or not hidden >> min(distance - 1, LAST_BIT) & 1


@inlined
def task_of(item: int, head: int, place: int, call: AttentionCall, plan: PlanNumbers) -> Task:
    """Return an item of one KV head, at a place in the scratch."""
    places, block_size = int64_at(plan.places), call.block_size
    first, count = int64_at(plan.first_rows)[item], int64_at(plan.num_rows)[item]
    num_vectors = count * call.group
    context = places[first + count - 1] + 1
    end_block = (context + block_size - 1) // block_size
    least_hidden, end_shared = places[first], end_block
    if plan.hidden:
        for row in range(first, first + count):
            if int64_at(plan.hidden)[row]:
                least_hidden = min(least_hidden, first_hidden(row, plan))
                end_shared = min(end_shared, first_hidden(row, plan) // block_size)
    # A row's position is at least its first hidden place.
    first_block = max(0, least_hidden + 1 - call.window) // block_size
    width = (end_block - first_block) * block_size
    scores = place * plan.scratch_width
    return Task(
        head,
        first,
        count,
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
def line_of(block: int, task: Task, call: AttentionCall, plan: PlanNumbers) -> int:
    """Return the place of a head's Block in the cache, counted in heads of Blocks."""
    line: int = int64_at(plan.tables)[task.entries + block] * call.num_kv_heads + task.head
    return line


@inlined
def write_mixed(
    task: Task, first_column: int, end_column: int, out: Pointer, call: AttentionCall, plan: PlanNumbers
) -> None:
    """Copy some columns of the outputs of all vectors into the result."""
    scratch, group, head_dim = float32_at(plan.scratch), call.group, call.head_dim
    for vector in range(task.num_vectors):
        row = task.first_row + vector // group
        target = ((row * call.num_kv_heads + task.head) * group + vector % group) * head_dim
        for index in range(first_column, end_column):
            store(out, target + index, load(scratch, task.mixed + vector * head_dim + index))
