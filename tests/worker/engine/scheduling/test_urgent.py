"""Urgent Sequences: soon served, by whose expense, and never at that of everybody else's end."""

import itertools

import pytest

from tests.fixtures.scheduling import CacheModel, make_scheduler, make_sequence
from worker.engine.requests.config import ADMISSIONS
from worker.engine.scheduling.plan import StepPlan
from worker.engine.scheduling.scheduler import Scheduler
from worker.engine.scheduling.turns import PATIENCE_STEPS
from worker.engine.sequences.sequence import Sequence, SequenceState
from worker.values.outcomes import FinishReason

BUDGET = 32


class Bench:
    """A scheduler with a backlog, and a count of the Steps that each Sequence had tokens in."""

    def __init__(self, scheduler: Scheduler, *, block_size: int = 4) -> None:
        self.scheduler = scheduler
        self.cache = CacheModel(block_size)
        self.arrivals = itertools.count()
        self.entries: list[list[Sequence]] = []

    def add(self, *, prompt: int = 6, max_tokens: int = 40, **flags: bool) -> Sequence:
        arrival = next(self.arrivals)
        sequence = make_sequence(arrival, [arrival % 7 + 1] * prompt, max_tokens)
        for name, value in flags.items():
            setattr(sequence, name, value)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> list[Sequence]:
        schedule = self.scheduler.schedule

        def recorded(num_steps: int) -> StepPlan:
            plan = schedule(num_steps)
            self.entries.append([entry.sequence for entry in plan.entries])
            return plan

        self.scheduler.schedule = recorded  # type: ignore[method-assign]
        sampled = self.cache.run(self.scheduler, BUDGET)
        self.scheduler.schedule = schedule  # type: ignore[method-assign]
        for sequence in sampled:
            sequence.token_ids.append(1)
            if sequence.num_output_tokens >= sequence.params.max_tokens:
                self.scheduler.finish(sequence, FinishReason.LENGTH)
        return sampled


@pytest.mark.parametrize("policy", ADMISSIONS)
def test_an_urgent_prompt_has_the_next_step_to_itself(policy: str) -> None:
    bench = Bench(make_scheduler(num_blocks=256, max_num_sequences=4, policy=policy))
    backlog = [bench.add() for _ in range(20)]
    for _ in range(5):
        bench.step()
    assert bench.scheduler.num_running == 4
    urgent = bench.add(is_urgent=True)
    assert bench.step() == [urgent]
    assert urgent.num_output_tokens == 1
    assert bench.scheduler.stats.preemptions == 1
    # From here on it decodes beside the others.
    assert len(bench.step()) == 4
    while any(one.state is not SequenceState.FINISHED for one in backlog):
        bench.step()
    assert [one.num_output_tokens for one in backlog] == [40] * 20


def test_the_least_computed_gives_way_and_resumes_where_it_was() -> None:
    bench = Bench(make_scheduler(num_blocks=64, max_num_sequences=3))
    long, middle = bench.add(prompt=20), bench.add(prompt=12)
    bench.step()
    short = bench.add(prompt=4)
    for _ in range(6):
        bench.step()
    bench.add(is_urgent=True, max_tokens=2)
    bench.step()
    assert [one.state for one in (long, middle, short)] == ["running", "running", "waiting"]
    before = short.num_output_tokens
    bench.step()
    bench.step()
    assert short.state is SequenceState.RUNNING
    assert short.num_output_tokens == before + 1
    # What its full Blocks held was found in the prefix cache.
    assert bench.scheduler.stats.resumed_tokens == 8


@pytest.mark.parametrize("policy", ADMISSIONS)
@pytest.mark.parametrize(("prompt", "max_tokens"), [(6, 1), (6, 12), (24, 3)])
def test_batch_work_goes_on_under_a_stream_of_urgent_work(policy: str, prompt: int, max_tokens: int) -> None:
    bench = Bench(make_scheduler(num_blocks=24, max_num_sequences=4, policy=policy))
    backlog = [bench.add(max_tokens=20) for _ in range(6)]
    for number in range(4000):
        if number % 2 or bench.scheduler.num_waiting < 10:
            bench.add(prompt=prompt, max_tokens=max_tokens, is_urgent=True)
        bench.step()
        if all(one.state is SequenceState.FINISHED for one in backlog):
            break
    else:
        raise AssertionError("batch work starved")
    without = 0
    for entries in bench.entries:
        without = 0 if any(not one.is_urgent for one in entries) else without + 1
        assert without <= 2 * PATIENCE_STEPS


def test_urgent_work_takes_no_more_than_half_of_the_rows() -> None:
    bench = Bench(make_scheduler(num_blocks=256, max_num_sequences=4))
    for _ in range(4):
        bench.add()
    bench.step()
    for _ in range(4):
        bench.add(is_urgent=True)
    bench.step()
    assert [one.is_urgent for one in bench.scheduler.running] == [True, True, False, False]


def test_nobody_is_preempted_for_what_would_still_not_fit() -> None:
    bench = Bench(make_scheduler(num_blocks=16, max_num_sequences=4, is_caching=False))
    oldest = bench.add(prompt=28, max_tokens=8)
    other = bench.add(prompt=8, max_tokens=30)
    bench.step()
    bench.step()
    urgent = bench.add(prompt=40, max_tokens=2, is_urgent=True)
    bench.add(max_tokens=5)
    while oldest.state is not SequenceState.FINISHED:
        bench.step()
        assert other.state is not SequenceState.WAITING or bench.scheduler.stats.preemptions <= 1
    while urgent.state is not SequenceState.FINISHED:
        bench.step()
    assert bench.scheduler.stats.preemptions <= 1


def test_who_wants_to_be_alone_has_every_other_step() -> None:
    bench = Bench(make_scheduler(num_blocks=256, max_num_sequences=8))
    others = [bench.add() for _ in range(3)]
    bench.step()
    alone = bench.add(max_tokens=5, is_urgent=True, is_alone=True)
    while alone.state is not SequenceState.FINISHED:
        bench.step()
    with_it = [entries for entries in bench.entries if alone in entries]
    assert with_it == [[alone]] * 5
    assert len(bench.entries) <= 1 + 2 * 5
    assert all(one.num_output_tokens >= 4 for one in others)
