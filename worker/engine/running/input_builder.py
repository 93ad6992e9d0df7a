"""Turns a StepPlan into the arrays of one packed forward, with numpy on the host."""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np

from kernels.paged_attention import hidden_places
from worker.engine.choosing.chosen_tokens import TokensOnDevice
from worker.engine.choosing.row_reader import RowSpan
from worker.engine.choosing.sampler import SamplingInput, SamplingInputs
from worker.engine.scheduling.plan import ScheduledSequence, StepPlan
from worker.engine.sequences.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PackedStep:
    """One Step on the host: the rows of all Sequences end to end, without padding."""

    token_ids: np.ndarray  # [num_tokens] int64
    positions: np.ndarray  # [num_tokens] int64
    places: np.ndarray  # [num_tokens] int64, counted in Slots of the Sequence: positions, but for trees
    slots: np.ndarray  # [num_tokens] int64, the Slot of each token's key and value
    num_tokens: list[int]  # of each Sequence
    rows: np.ndarray  # [num_sequences] int64, of `all_block_tables`
    all_block_tables: np.ndarray  # [max_num_sequences, max_blocks] int64, not a copy
    tables: tuple[list[int], ...]  # each Sequence's BlockTable; a new list at each admission
    # Rows whose next token is chosen, then rows of `spans`; None: all rows, in order.
    output_rows: list[int] | None
    # The Sequence of each row whose next token is chosen: once, and once for each of its guesses.
    sampled: tuple[Sequence, ...]
    sampling: SamplingInput | None  # None: all greedy
    spans: tuple[RowSpan, ...] = ()  # output rows that go to readouts
    # Rows whose token is still on the device: (row, index among the tokens that the previous Step chose).
    pending: tuple[tuple[int, int], ...] = ()
    # The guesses between the known tokens and the next one, of each row in `sampled`; empty: none has any.
    ahead: tuple[tuple[int, ...], ...] = ()
    # [num_tokens] int64: places that rows do not read, as `hidden_places` says; None: there are no trees.
    hidden: np.ndarray | None = None


class InputBuilder:
    """Keeps the BlockTables of running Sequences as one matrix and builds each Step's input from it."""

    def __init__(self, *, max_num_sequences: int, max_blocks_per_sequence: int, block_size: int) -> None:
        self._block_size = block_size
        self._block_tables = np.zeros((max_num_sequences, max_blocks_per_sequence), dtype=np.int64)
        # The list that each row mirrors, and how many entries of it.
        self._mirrored: list[tuple[list[int], int]] = [([], 0)] * max_num_sequences
        self._sampling = SamplingInputs()

    def build(self, plan: StepPlan, before: TokensOnDevice | None) -> PackedStep:
        """Return a Step's arrays, with Sequences in the order of the plan.

        `before` holds the tokens that the previous Step chose, if they are still on the device.
        """
        entries, has_guesses = plan.entries, plan.num_guesses > 0
        rows = np.array([self._mirror(entry.sequence) for entry in entries])
        num_tokens = [entry.num_tokens for entry in entries]
        starts = np.array([entry.start for entry in entries])
        counts = np.array(num_tokens)
        ends = counts.cumsum()
        token_ids, pending = _known_tokens(entries, before)
        if max(num_tokens) == 1:
            places, owners = starts, rows
        else:
            # Packed row r of a Sequence is its token start + (r - first row of the Sequence).
            places = np.repeat(starts - ends + counts, counts) + np.arange(ends[-1])
            owners = np.repeat(rows, counts)
        blocks = self._block_tables[owners, places // self._block_size]
        slots = blocks * self._block_size + places % self._block_size
        positions, hidden = places, None
        if has_guesses and any(entry.parents for entry in entries):
            hidden = _hidden(entries, ends)
            positions = places - np.array([bits.bit_count() for bits in hidden.tolist()])
        end_rows: list[int] = ends.tolist()
        sampled = [
            (row, entry.sequence, path)
            for end, entry in zip(end_rows, entries, strict=True)
            if entry.is_sampled
            for row, path in enumerate(entry.paths, end - 1 - len(entry.guesses))
        ]
        sequences = tuple([sequence for _, sequence, _ in sampled])
        ahead = tuple([guesses for _, _, guesses in sampled]) if has_guesses else ()
        output_rows: list[int] | None = None
        spans: tuple[RowSpan, ...] = ()
        if len(sampled) < len(token_ids):
            read_rows, spans = read_spans(entries, end_rows)
            if sampled or len(read_rows) < len(token_ids):
                output_rows = [row for row, _, _ in sampled] + read_rows
        return PackedStep(
            token_ids=np.array(token_ids),
            positions=positions,
            places=places,
            slots=slots,
            num_tokens=num_tokens,
            rows=rows,
            all_block_tables=self._block_tables,
            tables=tuple([entry.sequence.block_table for entry in entries]),
            output_rows=output_rows,
            sampled=sequences,
            sampling=self._sampling.build(sequences, ahead),
            spans=spans,
            pending=tuple(pending),
            ahead=ahead,
            hidden=hidden,
        )

    def _mirror(self, sequence: Sequence) -> int:
        """Update the matrix row of a Sequence and return its number."""
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


def _known_tokens(
    entries: Items[ScheduledSequence], before: TokensOnDevice | None
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the packed token ids, and `pending` of the PackedStep: 0 stands for a token on the device."""
    order = {} if before is None else {one: place for place, one in enumerate(before.sequences)}
    token_ids: list[int] = []
    pending: list[tuple[int, int]] = []
    for entry in entries:
        num_known = entry.num_known
        known = entry.sequence.token_ids[entry.start : entry.start + num_known]
        token_ids += known
        if len(known) < num_known:
            pending.append((len(token_ids), order[entry.sequence]))
            token_ids.append(0)
        token_ids += entry.guesses
    return token_ids, pending


def _hidden(entries: Items[ScheduledSequence], ends: np.ndarray) -> np.ndarray:
    """Return the places that each row of a Step with trees does not read."""
    hidden = np.zeros(ends[-1], dtype=np.int64)
    for end, entry in zip(ends, entries, strict=True):
        if entry.parents:  # of the rows, of which the first has the newest known token
            parents = (-1, *(parent + 1 for parent in entry.parents))
            hidden[end - len(parents) : end] = hidden_places(parents)
    return hidden


def read_spans(
    entries: Iterable[ScheduledSequence], ends: Iterable[int]
) -> tuple[list[int], tuple[RowSpan, ...]]:
    """Return the packed rows that readouts take, and the spans that say which readout takes which rows."""
    rows: list[int] = []
    spans: list[RowSpan] = []
    for entry, end in zip(entries, ends, strict=True):
        readout = entry.sequence.readout
        if readout is not None:
            # A preempted Sequence computes rows again that were read before; skip these.
            start = max(entry.start, readout.next_row)
            stop = min(entry.start + entry.num_tokens, readout.end_row)
            if start < stop:
                first = end - entry.num_tokens - entry.start
                rows += range(first + start, first + stop)
                spans.append(RowSpan(readout, stop - start))
    return rows, tuple(spans)
