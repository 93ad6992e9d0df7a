"""Divides attention on a CPU among threads.

A task, the rows of an item for one KV head, is one thread's. But a task that reads more than a thread's fair
share, as a long context does where few Sequences run, is shared: the threads score some of its Blocks each,
meet, weigh the scores of some vectors each, meet, and mix some columns of its values each. So no sum is cut,
and a row has the same bits either way.
"""

from typing import Any, NamedTuple

import torch

from kernels.compiled import Pointer, inlined, kernel
from kernels.paged_attention.bytes import mix_bytes, score_bytes, takes, weigh_bytes
from kernels.paged_attention.floats import mix_floats, score_floats, weigh_floats
from kernels.paged_attention.task import AttentionCall, PlanNumbers, Task, task_of, write_mixed
from kernels.simd import bfloat16_at, float32_at, int8_at, int64_at, store
from kernels.threads import LINE, fork, meet, share, take_next, team_size

# The number of query vectors that share a KV head and run together: a multiple of the rows of every tile. A
# Block is read once for all of them.
VECTORS_PER_ITEM = 24
# The fewest tokens of a context that threads share: meeting twice costs as much as reading some hundred.
LEAST_SHARED = 1024
SHARED_COLUMNS = 64  # of values that one thread mixes, or a multiple: a sum in float32 stays in one tile
SHARES = 2  # of a task, for each thread: another one may take over what a late one has not begun

# What a thread does with a task: all of it, or its share of what is done between two meetings.
SCORE, WEIGH, MIX, ALL = range(4)


class Team(NamedTuple):
    """The threads that divide the items of a call."""

    member: int
    num_members: int
    counter: int  # the address of a counter, zero at first
    meeting: int  # the address of where they meet, as `meet` takes it


@inlined
def _tokens(item: int, call: AttentionCall, plan: PlanNumbers) -> int:
    """Return the most tokens that a row of an item reads."""
    last = int64_at(plan.first_rows)[item] + int64_at(plan.num_rows)[item] - 1
    tokens: int = min(int64_at(plan.places)[last] + 1, call.window)
    return tokens


@inlined
def _fair_share(first_item: int, end_item: int, team: Team, call: AttentionCall, plan: PlanNumbers) -> int:
    """Return the tokens, times rows, that a thread reads for items; 0 if none of them can be shared."""
    longest = min(call.window, plan.table_width * call.block_size)
    total = 0
    if team.num_members > 1 and longest >= LEAST_SHARED and not plan.hidden:
        for item in range(first_item, end_item):
            total += int64_at(plan.num_rows)[item] * _tokens(item, call, plan)
    return total * call.num_kv_heads // team.num_members


@inlined
def _is_shared(item: int, fair_share: int, call: AttentionCall, plan: PlanNumbers) -> bool:
    tokens = _tokens(item, call, plan)
    return fair_share > 0 and tokens >= LEAST_SHARED and int64_at(plan.num_rows)[item] * tokens > fair_share


@inlined
def _shared_item(first_item: int, index: int, fair_share: int, call: AttentionCall, plan: PlanNumbers) -> int:
    """Return the item that is the so-and-so-many-th of those that are shared, from 0 on."""
    item = first_item
    while index or not _is_shared(item, fair_share, call, plan):
        index -= _is_shared(item, fair_share, call, plan)
        item += 1
    return item


@kernel
def _run_share(
    phase: int,
    nth: int,
    num_shares: int,
    task: Task,
    keys: Pointer,
    values: Pointer,
    out: Pointer,
    call: AttentionCall,
    plan: PlanNumbers,
) -> None:
    """Do a share of a phase of a task."""
    has_bytes, scratch, head_dim = takes(call), float32_at(plan.scratch), call.head_dim
    if phase in (SCORE, ALL):
        begin, end = share(task.end_block - task.first_block, nth, num_shares)
        first, last = task.first_block + begin, task.first_block + end
        if has_bytes:
            score_bytes(task, first, last, call, plan)
        else:
            score_floats(task, first, last, keys, values, call, plan)
    if phase in (WEIGH, ALL):
        first, last = share(task.num_vectors, nth, num_shares)
        if has_bytes:
            weigh_bytes(task, first, last, call, plan)
        else:
            weigh_floats(task, first, last, call, plan)
    if phase in (MIX, ALL):
        begin, end = share((head_dim + SHARED_COLUMNS - 1) // SHARED_COLUMNS, nth, num_shares)
        first, last = begin * SHARED_COLUMNS, min(end * SHARED_COLUMNS, head_dim)
        for vector in range(task.num_vectors):
            for index in range(first, last):
                store(scratch, task.mixed + vector * head_dim + index, 0)
        if has_bytes:
            mix_bytes(task, first, last, call, plan)
        else:
            mix_floats(task, first, last, values, call, plan)
        write_mixed(task, first, last, out, call, plan)


@inlined
def attend_items(
    first_item: int,
    end_item: int,
    team: Team,
    keys: Pointer,
    values: Pointer,
    out: Pointer,
    call: AttentionCall,
    plan: PlanNumbers,
) -> None:
    """Compute some items with the other threads of a team; one may return before the others have ended."""
    counters, num_kv_heads = int64_at(team.counter), call.num_kv_heads
    fair_share = _fair_share(first_item, end_item, team, call, plan)
    num_shared = 0
    if fair_share:
        for item in range(first_item, end_item):
            num_shared += _is_shared(item, fair_share, call, plan)
    begin, ticket = 0, take_next(counters, 0)
    for phase in range(SCORE if num_shared else ALL, ALL + 1):
        num_shares = 1 if phase == ALL else SHARES * team.num_members
        num_items = end_item - first_item if phase == ALL else num_shared
        end = begin + num_items * num_kv_heads * num_shares
        while ticket < end:
            number, nth = (ticket - begin) // num_shares, (ticket - begin) % num_shares
            item, head, place = first_item + number // num_kv_heads, number % num_kv_heads, team.member
            if phase != ALL:
                item = _shared_item(first_item, number // num_kv_heads, fair_share, call, plan)
                place = team.num_members + number
            if phase != ALL or not _is_shared(item, fair_share, call, plan):
                task = task_of(item, head, place, call, plan)
                _run_share(phase, nth, num_shares, task, keys, values, out, call, plan)
            ticket = take_next(counters, 0)
        begin = end
        if phase in (SCORE, WEIGH):
            meet(team.meeting, team.member, team.num_members)


@kernel
def _attend(
    part: int,
    num_parts: int,
    keys: Pointer,
    values: Pointer,
    out: Pointer,
    counter: int,
    call: AttentionCall,
    plan: PlanNumbers,
) -> None:
    num_members = min(num_parts, team_size())  # OpenMP may have started fewer threads
    if part < num_members:
        team = Team(part, num_members, counter, counter + LINE * 8)
        attend_items(0, plan.num_items, team, keys, values, out, call, plan)


# Numba takes a plain tuple three microseconds faster than a named one.
Numbers = tuple[Any, ...]


@kernel
def _attend_float32(num_parts: int, counter: int, numbers: Numbers, plan: Numbers) -> None:
    call = AttentionCall(*numbers)
    pointers = (float32_at(call.keys), float32_at(call.values), float32_at(call.out))
    fork(_attend, num_parts, (*pointers, counter, call, PlanNumbers(*plan)))


@kernel
def _attend_bfloat16(num_parts: int, counter: int, numbers: Numbers, plan: Numbers) -> None:
    call = AttentionCall(*numbers)
    pointers = (bfloat16_at(call.keys), bfloat16_at(call.values), bfloat16_at(call.out))
    fork(_attend, num_parts, (*pointers, counter, call, PlanNumbers(*plan)))


@kernel
def _attend_mixed(num_parts: int, counter: int, numbers: Numbers, plan: Numbers) -> None:
    call = AttentionCall(*numbers)
    pointers = (bfloat16_at(call.keys), bfloat16_at(call.values), float32_at(call.out))
    fork(_attend, num_parts, (*pointers, counter, call, PlanNumbers(*plan)))


@kernel
def _attend_int8_float32(num_parts: int, counter: int, numbers: Numbers, plan: Numbers) -> None:
    call = AttentionCall(*numbers)
    pointers = (int8_at(call.keys), int8_at(call.values), float32_at(call.out))
    fork(_attend, num_parts, (*pointers, counter, call, PlanNumbers(*plan)))


@kernel
def _attend_int8_bfloat16(num_parts: int, counter: int, numbers: Numbers, plan: Numbers) -> None:
    call = AttentionCall(*numbers)
    pointers = (int8_at(call.keys), int8_at(call.values), bfloat16_at(call.out))
    fork(_attend, num_parts, (*pointers, counter, call, PlanNumbers(*plan)))


# Kernels by dtype of the result and of the cache, each compiled on first use. They take the number of
# parts, where a counter and a meeting are, an AttentionCall and a PlanNumbers, both as plain tuples.
ATTEND = {
    (torch.float32, torch.float32): _attend_float32,
    (torch.bfloat16, torch.bfloat16): _attend_bfloat16,
    (torch.float32, torch.bfloat16): _attend_mixed,
    (torch.float32, torch.int8): _attend_int8_float32,
    (torch.bfloat16, torch.int8): _attend_int8_bfloat16,
}
