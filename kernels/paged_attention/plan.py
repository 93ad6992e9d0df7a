"""What attention needs to know of a Step, worked out once and used by every layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# A group costs about as much in calls as gathering and reading this many Blocks: an estimate from operator
# timings on 2 cores, not tuned.
BLOCKS_PER_GROUP_OVERHEAD = 48
# Rows of a prompt that run at once: few enough that later tokens are seldom read and scores stay small.
ROWS_PER_TILE = 128


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Neighbouring Sequences that run as one dense batch, padded to their longest context.

    A decode group has one query row a Sequence; a prefill group is one Sequence with a tile of its rows.
    """

    first_row: int
    last_row: int  # exclusive, in rows of the packed Step
    num_sequences: int
    block_ids: Tensor  # [num_sequences * blocks_per_sequence] int64
    # Added to the scores: [num_kv_heads * num_sequences, 1, context] for decode, [rows, context] for prefill.
    # None: every row reads all of the context.
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The groups that cover every row of a Step, in row order."""

    num_rows: int
    groups: tuple[AttentionGroup, ...]


def plan_attention(
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    block_tables: Tensor,
    *,
    block_size: int,
    num_kv_heads: int,
    dtype: torch.dtype,
    window: int | None = None,
) -> AttentionPlan:
    """Group a Step's Sequences into dense batches.

    `query_lens` are the new tokens of each Sequence in packed order, `context_lens` its tokens in all, new
    ones included; `block_tables` [num_sequences, max_blocks] integers, whose entries past a Sequence's end
    may be any valid Block. Sequences with one query row come first, longest context first, which keeps the
    padding small. With a `window`, a row reads only that many tokens, its own the last of them. Raises
    ValueError when a context is shorter than its query.
    """
    if any(query > context for query, context in zip(query_lens, context_lens, strict=True)):
        raise ValueError("plan_attention: a context is shorter than its query")
    num_blocks = [-(-context // block_size) for context in context_lens]
    groups: list[AttentionGroup] = []
    row = first = 0
    while first < len(query_lens):
        if query_lens[first] > 1:
            context = context_lens[first]
            before = context - query_lens[first]  # tokens in the cache before this Step
            for position in range(before, context, ROWS_PER_TILE):
                end = min(position + ROWS_PER_TILE, context)
                table = block_tables[first, : -(-end // block_size)]
                groups.append(_prefill_group(row - before, position, end, table, block_size, dtype, window))
            row += query_lens[first]
            first += 1
            continue
        last = _group_end(first, query_lens, num_blocks)
        width = max(num_blocks[first:last])
        groups.append(
            _decode_group(
                row,
                context_lens[first:last],
                block_tables[first:last, :width],
                block_size,
                num_kv_heads,
                dtype,
                window,
            )
        )
        row += last - first
        first = last
    return AttentionPlan(row, tuple(groups))


def _group_end(first: int, query_lens: Sequence[int], num_blocks: Sequence[int]) -> int:
    """Return where the group that starts at `first` ends: when padding would cost more than another group."""
    widest = num_blocks[first]
    padding = 0
    last = first + 1
    while last < len(query_lens) and query_lens[last] == 1:
        if num_blocks[last] > widest:
            padding += (num_blocks[last] - widest) * (last - first)
            widest = num_blocks[last]
        padding += widest - num_blocks[last]
        if padding > BLOCKS_PER_GROUP_OVERHEAD:
            break
        last += 1
    return last


def _decode_group(
    row: int,
    context_lens: Sequence[int],
    block_tables: Tensor,
    block_size: int,
    num_kv_heads: int,
    dtype: torch.dtype,
    window: int | None,
) -> AttentionGroup:
    num_sequences, width = block_tables.shape
    padded = width * block_size
    mask = None
    if min(context_lens) < padded or (window is not None and window < max(context_lens)):
        lens = torch.tensor(context_lens).unsqueeze(1)
        mask = _mask(lens - 1, padded, dtype, window).unsqueeze(1).repeat(num_kv_heads, 1, 1)
    return AttentionGroup(
        first_row=row,
        last_row=row + num_sequences,
        num_sequences=num_sequences,
        block_ids=block_tables.reshape(-1).long(),
        mask=mask,
    )


def _prefill_group(
    start: int,
    position: int,
    end: int,
    block_table: Tensor,
    block_size: int,
    dtype: torch.dtype,
    window: int | None,
) -> AttentionGroup:
    """Return the tile of tokens [position, end) of a Sequence whose token 0 would be row `start`."""
    positions = torch.arange(position, end).unsqueeze(1)
    return AttentionGroup(
        first_row=start + position,
        last_row=start + end,
        num_sequences=1,
        block_ids=block_table.long(),
        mask=_mask(positions, len(block_table) * block_size, dtype, window),
    )


def _mask(positions: Tensor, width: int, dtype: torch.dtype, window: int | None) -> Tensor:
    """Return 0 where the token at `positions` [rows, 1] reads one of `width` tokens, else minus infinity."""
    columns = torch.arange(width)
    is_hidden = columns > positions
    if window is not None:
        is_hidden |= columns <= positions - window
    return torch.zeros(is_hidden.shape, dtype=dtype).masked_fill_(is_hidden, float("-inf"))
