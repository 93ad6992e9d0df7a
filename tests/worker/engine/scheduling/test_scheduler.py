"""The scheduler against a model of the cache: each Slot remembers which tokens it was computed from."""

import random
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.scheduling import CacheModel, make_scheduler, make_sequence
from worker.engine.requests.config import ADMISSIONS
from worker.engine.scheduling.scheduler import Scheduler
from worker.engine.sequences.sequence import Sequence, SequenceState
from worker.values.outcomes import FinishReason


def drive(scheduler: Scheduler, sequences: list[Sequence], budget: int, block_size: int) -> Iterator[int]:
    """Run to the end, yielding after each Step; tokens come from a small alphabet, so that prefixes meet."""
    cache = CacheModel(block_size)
    random_numbers = random.Random(0)
    for sequence in sequences:
        scheduler.add(sequence)
    step = 0
    while scheduler.num_running or scheduler.num_waiting:
        for sequence in cache.run(scheduler, budget):
            sequence.token_ids.append(random_numbers.randrange(2))
            if sequence.num_output_tokens >= sequence.params.max_tokens:
                scheduler.finish(sequence, FinishReason.LENGTH)
        scheduler.check_integrity()
        step += 1
        assert step < 5000, "livelock"
        yield step


prompts = st.lists(st.integers(0, 1), min_size=1, max_size=30)


@settings(max_examples=150)
@given(
    work=st.lists(st.tuples(prompts, st.integers(1, 12)), min_size=1, max_size=14),
    block_size=st.integers(1, 5),
    spare_blocks=st.integers(0, 20),
    max_num_sequences=st.integers(1, 6),
    spare_budget=st.integers(0, 20),
    is_caching=st.booleans(),
    policy=st.sampled_from(ADMISSIONS),
    cancellations=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 13)), max_size=4),
)
def test_everything_finishes_and_no_block_leaks(
    work: list[tuple[list[int], int]],
    block_size: int,
    spare_blocks: int,
    max_num_sequences: int,
    spare_budget: int,
    is_caching: bool,
    policy: str,
    cancellations: list[tuple[int, int]],
) -> None:
    longest = max(len(prompt) + max_tokens for prompt, max_tokens in work)
    num_blocks = -(-longest // block_size) + spare_blocks
    budget = max_num_sequences + spare_budget
    scheduler = make_scheduler(
        num_blocks, block_size, max_num_sequences, budget, is_caching=is_caching, policy=policy
    )
    sequences = [make_sequence(i, prompt, max_tokens) for i, (prompt, max_tokens) in enumerate(work)]
    for step in drive(scheduler, sequences, budget, block_size):
        assert scheduler.num_running <= max_num_sequences
        for when, index in cancellations:
            if when == step and index < len(sequences):
                scheduler.finish(sequences[index], FinishReason.CANCELLED)
                scheduler.finish(sequences[index], FinishReason.CANCELLED)  # twice is harmless
                scheduler.check_integrity()
    assert all(sequence.state is SequenceState.FINISHED for sequence in sequences)
    assert scheduler.block_pool.num_free_blocks == num_blocks


def test_decodes_are_not_stalled_by_a_long_prompt() -> None:
    scheduler = make_scheduler(max_tokens_per_step=8, max_num_sequences=4)
    short, long, other = make_sequence(0, [1]), make_sequence(1, [1] * 60), make_sequence(2, [0])
    for sequence in (short, other):
        scheduler.add(sequence)
    scheduler.advance(scheduler.schedule())
    for sequence in (short, other):
        sequence.token_ids.append(5)
    scheduler.add(long)  # older than `other`: it is offered tokens first
    scheduler.advance(scheduler.schedule())
    for sequence in (short, other):
        sequence.token_ids.append(5)
    plan = scheduler.schedule()
    assert {entry.sequence.arrival: entry.num_tokens for entry in plan.entries} == {0: 1, 1: 6, 2: 1}


def test_waiting_is_first_in_first_out() -> None:
    scheduler = make_scheduler(max_num_sequences=2)
    for arrival in (3, 1, 2):
        scheduler.add(make_sequence(arrival, [arrival, arrival]))
    plan = scheduler.schedule()
    assert [entry.sequence.arrival for entry in plan.entries] == [1, 2]


def test_admission_needs_room_for_the_whole_prompt() -> None:
    scheduler = make_scheduler(num_blocks=10, max_tokens_per_step=8, is_caching=False)
    scheduler.add(make_sequence(0, [1] * 24))  # 6 Blocks, in three chunks
    scheduler.add(make_sequence(1, [1] * 20))  # 5 Blocks: 4 are free
    scheduler.schedule()
    assert (scheduler.num_running, scheduler.num_waiting) == (1, 1)
    assert scheduler.block_pool.num_free_blocks == 4


def test_the_least_computed_is_preempted_and_the_oldest_never() -> None:
    scheduler = make_scheduler(num_blocks=9, is_caching=False)
    sequences = [make_sequence(0, [1] * 4), make_sequence(1, [1] * 11), make_sequence(2, [1] * 7)]
    for sequence in sequences:
        scheduler.add(sequence)
    scheduler.advance(scheduler.schedule())
    assert scheduler.num_running == 3
    for _ in range(20):
        for sequence in sequences:
            if sequence.state is SequenceState.RUNNING:
                sequence.token_ids.append(5)
        scheduler.advance(scheduler.schedule())
        assert sequences[0].state is SequenceState.RUNNING
        if scheduler.stats.preemptions == 1:
            break
    assert [sequence.state.value for sequence in sequences] == ["running", "running", "waiting"]


@pytest.mark.parametrize(
    "module",
    ["scheduling.scheduler", "scheduling.block_pool", "scheduling.prefix_cache", "scheduling.admission"],
)
def test_needs_no_torch(module: str) -> None:
    """A scheduler that reaches for tensors can no longer be tested or reasoned about on its own."""
    code = f"import sys, worker.engine.{module}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
