"""Turns a StepPlan into the tensors of one packed forward, with numpy on the host."""

from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from kernels.paged_attention import AttentionPlan, plan_attention
from worker.engine.prompt_logprobs import PromptRows, find_prompt_rows
from worker.engine.sampler import SamplingInput, build_sampling_input
from worker.engine.sequence import Sequence
from worker.engine.step import StepPlan


@dataclass(frozen=True, slots=True)
class StepInput:
    """One Step as the model sees it: the rows of all Sequences end to end, no padding."""

    token_ids: Tensor  # [num_tokens] int64
    positions: Tensor  # [num_tokens] int64
    slots: Tensor  # [num_tokens] int64, where each token's keys and values go
    attention: dict[int | None, AttentionPlan]  # by the window of the layers that use it
    # [num_outputs] int64: the rows whose next token is chosen, then `prompt_rows`; None: all rows are chosen
    output_rows: Tensor | None
    sampled: tuple[Sequence, ...]  # the Sequence of each row whose next token is chosen
    sampling: SamplingInput | None  # None: all greedy
    prompt_rows: tuple[PromptRows, ...] = ()


class InputBuilder:
    """Keeps the block tables of running Sequences as one matrix and builds each Step's input from it."""

    def __init__(
        self,
        *,
        max_num_sequences: int,
        max_blocks_per_sequence: int,
        block_size: int,
        num_kv_heads: int,
        dtype: torch.dtype,
        windows: frozenset[int | None] = frozenset((None,)),
    ) -> None:
        self._block_size = block_size
        self._num_kv_heads = num_kv_heads
        self._dtype = dtype
        self._windows = windows
        self._block_tables = np.zeros((max_num_sequences, max_blocks_per_sequence), dtype=np.int64)
        # The list each row mirrors, and how much of it.
        self._mirrored: list[tuple[list[int], int]] = [([], 0)] * max_num_sequences

    def build(self, plan: StepPlan) -> StepInput:
        """Return the input of a Step: Sequences with one token first, longest context first."""
        entries = sorted(plan.entries, key=lambda entry: (entry.num_tokens > 1, -entry.start))
        rows = np.array([self._mirror(entry.sequence) for entry in entries])
        num_tokens = [entry.num_tokens for entry in entries]
        starts = np.array([entry.start for entry in entries])
        counts = np.array(num_tokens)
        ends = counts.cumsum()
        token_ids: list[int] = []
        for entry in entries:
            token_ids += entry.sequence.token_ids[entry.start : entry.start + entry.num_tokens]
        # Packed row r of a Sequence is its token start + (r - first row of the Sequence).
        positions = np.repeat(starts - ends + counts, counts) + np.arange(ends[-1])
        blocks = self._block_tables[np.repeat(rows, counts), positions // self._block_size]
        slots = blocks * self._block_size + positions % self._block_size
        sampled = [
            (end - 1, entry.sequence) for end, entry in zip(ends, entries, strict=True) if entry.is_sampled
        ]
        sequences = tuple(sequence for _, sequence in sampled)
        prompt_rows: tuple[PromptRows, ...] = ()
        output_rows = None
        if len(sampled) < len(token_ids):
            prompt_rows = find_prompt_rows(entries)
            asked = chain.from_iterable(one.rows for one in prompt_rows)
            output_rows = torch.tensor([*(int(row) for row, _ in sampled), *asked], dtype=torch.int64)
        return StepInput(
            token_ids=torch.tensor(token_ids),
            positions=torch.from_numpy(positions),
            slots=torch.from_numpy(slots),
            attention=self._plan_attention(num_tokens, (starts + counts).tolist(), rows),
            output_rows=output_rows,
            sampled=sequences,
            sampling=build_sampling_input(sequences),
            prompt_rows=prompt_rows,
        )

    def _plan_attention(
        self, query_lens: list[int], context_lens: list[int], rows: np.ndarray
    ) -> dict[int | None, AttentionPlan]:
        tables = torch.from_numpy(self._block_tables[rows])
        longest = max(context_lens)
        plans: dict[int | None, AttentionPlan] = {}
        for window in self._windows:
            # A window that hides nothing is none.
            effective = None if window is None or window >= longest else window
            if effective not in plans:
                plans[effective] = plan_attention(
                    query_lens,
                    context_lens,
                    tables,
                    block_size=self._block_size,
                    num_kv_heads=self._num_kv_heads,
                    dtype=self._dtype,
                    window=effective,
                )
            plans[window] = plans[effective]
        return plans

    def _mirror(self, sequence: Sequence) -> int:
        """Bring the matrix row of a Sequence up to date and return its number."""
        row = sequence.row
        if row is None:
            raise ValueError(f"Sequence {sequence.request_id!r} was scheduled without a row")
        table = sequence.block_table
        mirrored, count = self._mirrored[row]
        if mirrored is not table:
            count = 0
        if count < len(table):
            self._block_tables[row, count : len(table)] = table[count:]
            self._mirrored[row] = (table, len(table))
        return row
