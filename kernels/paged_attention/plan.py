"""Plans a Step's attention on a CPU once; every layer uses the plan."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.paged_attention.cpu import LEAST_SHARED, VECTORS_PER_ITEM
from kernels.paged_attention.task import PlanNumbers
from kernels.threads import num_threads


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """A Step's rows cut into items: neighbouring rows of one Sequence that run together."""

    block_tables: Tensor  # [num_sequences, max_blocks] int64
    places: Tensor  # [num_rows] int64: a row reads its Sequence up to its own place
    hidden: Tensor | None  # [num_rows] int64: places that it does not read; None: it reads all
    first_rows: Tensor  # [num_items] int64
    num_rows: Tensor  # [num_items] int64
    sequences: Tensor  # [num_items] int64, rows of `block_tables`
    # [num_threads, floats] float32: one thread's scores, mixtures and path; twice as many with long contexts.
    scratch: Tensor
    numbers: tuple[int, ...]  # PlanNumbers of the tensors above


def plan_attention(
    query_lens: Sequence[int],
    places: np.ndarray,
    block_tables: np.ndarray,
    hidden: np.ndarray | None = None,
    *,
    block_size: int,
    group: int,
    head_dim: int,
) -> AttentionPlan:
    """Cut a Step into items.

    `query_lens` are the numbers of new tokens of the Sequences, in packed order. `places` [num_rows] int64
    count the rows' Slots from the beginnings of their Sequences. `block_tables` is [num_sequences,
    max_blocks] int64; entries past a Sequence's end are not read. `hidden` [num_rows] int64 is as
    `hidden_places` returns it. `group` query heads share a KV head. Raises ValueError when lengths disagree.
    """
    if (
        sum(query_lens) != len(places)
        or len(query_lens) != len(block_tables)
        or (hidden is not None and len(hidden) != len(places))
    ):
        raise ValueError(
            f"plan_attention: {sum(query_lens)} tokens of {len(query_lens)} Sequences do not fit "
            f"{len(places)} places and {len(block_tables)} block tables"
        )
    rows_per_item, most = max(1, VECTORS_PER_ITEM // group), max(query_lens)
    sequences, first_rows, num_rows = _items(np.array(query_lens), rows_per_item, most)
    floats = min(rows_per_item, most) * group * (block_tables.shape[1] * block_size + head_dim)
    if hidden is not None:
        floats += block_size * head_dim
    tables, rows = torch.from_numpy(block_tables), torch.from_numpy(places)
    unread = None if hidden is None else torch.from_numpy(hidden)
    firsts, lengths, owners = (torch.from_numpy(one) for one in (first_rows, num_rows, sequences))
    # Fewer tasks than threads are shared; each has its own place.
    num_places = num_threads() * (2 if block_tables.shape[1] * block_size >= LEAST_SHARED else 1)
    scratch = torch.empty(num_places, floats)
    numbers = PlanNumbers(
        tables=tables.data_ptr(),
        table_width=tables.shape[1],
        places=rows.data_ptr(),
        hidden=0 if unread is None else unread.data_ptr(),
        num_items=len(first_rows),
        first_rows=firsts.data_ptr(),
        num_rows=lengths.data_ptr(),
        table_rows=owners.data_ptr(),
        scratch=scratch.data_ptr(),
        scratch_width=floats,
    )
    return AttentionPlan(tables, rows, unread, firsts, lengths, owners, scratch, tuple(numbers))


def _items(counts: np.ndarray, rows_per_item: int, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the Sequence of each item, its first row and its number of rows; `most` is the largest count."""
    first_rows = counts.cumsum() - counts
    if most <= rows_per_item and counts.all():
        return np.arange(len(counts)), first_rows, counts
    items = -(-counts // rows_per_item)
    sequences = np.repeat(np.arange(len(counts)), items)
    # The index of an item within its Sequence.
    nth = np.arange(items.sum()) - np.repeat(items.cumsum() - items, items)
    before = nth * rows_per_item
    num_rows = np.minimum(rows_per_item, counts[sequences] - before)
    return sequences, first_rows[sequences] + before, num_rows
