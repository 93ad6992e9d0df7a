"""Readings beside generation in one scheduler, without a model: every row is read once, in order."""

import itertools
import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.scheduling import CacheModel, make_scheduler, make_sequence
from worker.engine.running.input_builder import read_spans
from worker.engine.scheduling.plan import StepPlan
from worker.engine.sequences.readout import PooledReadout
from worker.engine.sequences.sequence import Sequence, SequenceState


def make_reading(arrival: int, prompt: list[int], share: float, *, is_shareable: bool) -> Sequence:
    """A Sequence that is read from a share of its length on."""
    sequence = make_sequence(arrival, prompt, 1)
    sequence.readout = PooledReadout(int(share * (len(prompt) - 1)), len(prompt))
    sequence.is_generating = False
    sequence.is_shareable = is_shareable
    return sequence


def read(plan: StepPlan) -> None:
    """Push the rows of a Step that the input builder picks, each its own position, and check the order."""
    entries = plan.entries
    positions = [p for entry in entries for p in range(entry.start, entry.start + entry.num_tokens)]
    ends = itertools.accumulate(entry.num_tokens for entry in entries)
    rows, spans = read_spans(entries, ends)
    for span in spans:
        picked = [positions[rows.pop(0)] for _ in range(span.num_rows)]
        assert isinstance(span.readout, PooledReadout)
        assert picked[0] == span.readout.next_row, "a row was left out or is read again"
        span.readout.push(np.array(picked, dtype=np.float64).reshape(-1, 1))
    assert not rows


@settings(max_examples=150)
@given(
    readings=st.lists(
        st.tuples(
            st.lists(st.integers(0, 1), min_size=1, max_size=30),
            st.floats(0, 1),  # where in it reading begins
            st.booleans(),
        ),
        min_size=1,
        max_size=8,
    ),
    generation=st.lists(
        st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=20), st.integers(1, 12)), max_size=6
    ),
    block_size=st.integers(1, 5),
    spare_blocks=st.integers(0, 12),
    max_num_sequences=st.integers(1, 6),
    spare_budget=st.integers(0, 20),
    is_caching=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_row_is_read_once(
    readings: list[tuple[list[int], float, bool]],
    generation: list[tuple[list[int], int]],
    block_size: int,
    spare_blocks: int,
    max_num_sequences: int,
    spare_budget: int,
    is_caching: bool,
    seed: int,
) -> None:
    longest = max(32, *(len(prompt) for prompt, _, _ in readings))
    num_blocks = -(-longest // block_size) + spare_blocks
    budget = max_num_sequences + spare_budget
    scheduler = make_scheduler(num_blocks, block_size, max_num_sequences, budget, is_caching=is_caching)
    sequences = [make_sequence(index, *work) for index, work in enumerate(generation)]
    for arrival, (prompt, share, is_shareable) in enumerate(readings, len(generation)):
        sequences.append(make_reading(arrival, prompt, share, is_shareable=is_shareable))
    first_rows = {sequence: sequence.next_row for sequence in sequences}
    numbers = random.Random(seed)
    numbers.shuffle(sequences)
    cache = CacheModel(block_size)
    plans: list[StepPlan] = []
    schedule = scheduler.schedule

    def recorded(num_steps: int) -> StepPlan:
        plans.append(schedule(num_steps))
        return plans[-1]

    scheduler.schedule = recorded  # type: ignore[method-assign]
    for sequence in sequences:
        scheduler.add(sequence)
    while scheduler.num_running or scheduler.num_waiting:
        sampled = cache.run(scheduler, budget)
        read(plans[-1])
        for sequence in sampled:
            sequence.token_ids.append(numbers.randrange(2))
        for entry in plans[-1].entries:
            ended = entry.sequence
            if ended.num_output_tokens >= ended.params.max_tokens or not ended.num_uncomputed_tokens:
                scheduler.finish(ended)
        scheduler.check_integrity()
        assert len(plans) < 5000, "livelock"
    assert scheduler.block_pool.num_free_blocks == num_blocks
    for sequence in sequences:
        assert sequence.state is SequenceState.FINISHED
        if sequence.readout is not None:
            assert sequence.readout.next_row == len(sequence.token_ids)
            assert sequence.readout.num_rows == len(sequence.token_ids) - first_rows[sequence]
            assert sequence.is_shareable or not sequence.num_cached_tokens
