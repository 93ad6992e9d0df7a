"""Groups that share the engine: who goes first, who gives way, and that one group alone notices nothing."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.scheduling import CacheModel, make_scheduler, make_sequence
from worker.engine.requests.config import ADMISSIONS
from worker.engine.requests.share import ONLY, Share
from worker.engine.scheduling.admission.fair_shares import MAX_IDLE_GROUPS, FairShares
from worker.engine.scheduling.plan import StepPlan
from worker.engine.scheduling.scheduler import Scheduler
from worker.engine.sequences.sequence import Sequence, SequenceState
from worker.values.outcomes import FinishReason

BIG, SMALL = Share("big"), Share("small")
ROWS, BUDGET = 8, 64


class Bare:
    """One queue, and no shares at all."""

    must_exchange = False
    few: Any = frozenset

    def __init__(self, shares: FairShares) -> None:
        queue = shares._make_order()._make_queue()
        for name in ("add", "start_step", "pop", "put_back", "has_room", "learn"):
            setattr(self, name, getattr(queue, name))

    def started(self, _: Sequence) -> None: ...
    def stopped(self, _: Sequence) -> None: ...
    def left_queue(self, _: Sequence) -> None: ...
    def may_displace(self) -> bool:
        return False

    def displaced_by(self, *_: Any) -> None:
        return None


class Bench:
    """A scheduler whose Sequences all run to max_tokens, and what each group had of it."""

    def __init__(self, policy: str = "length-aware", num_blocks: int = 512, **options: Any) -> None:
        self.scheduler: Scheduler = make_scheduler(num_blocks, 4, ROWS, BUDGET, policy=policy, **options)
        self.num_added = self.num_steps = 0
        self.seconds = 0.0
        self.num_tokens: Counter[Any] = Counter()

    def add(self, share: Share, count: int, *, prompt: int = 6, max_tokens: int = 40) -> list[Sequence]:
        added = []
        for _ in range(count):
            self.num_added += 1
            prompt_ids = [self.num_added % 50 + 1, *range(60, 59 + prompt)]
            added.append(make_sequence(self.num_added, prompt_ids, max_tokens, share=share))
            self.scheduler.add(added[-1])
        return added

    def step(self) -> None:
        self.num_steps += 1
        plan = self.scheduler.schedule()
        assert plan.num_tokens <= BUDGET
        self.scheduler.advance(plan)
        for entry in plan.entries:
            self.num_tokens[entry.sequence.share.group] += entry.num_tokens
            if entry.is_sampled:
                entry.sequence.token_ids.append(5)
                if entry.sequence.num_output_tokens >= entry.sequence.params.max_tokens:
                    self.scheduler.finish(entry.sequence, FinishReason.LENGTH)
        self.scheduler.check_integrity()

    def seconds_to_end(self, sequences: list[Sequence], seconds_of: Callable[[int], float]) -> float:
        """Return what the Steps take until these have ended, if one of so many tokens takes so long."""
        began = self.seconds
        took = self.scheduler.took

        def noted(plan: StepPlan) -> StepPlan:
            self.seconds += seconds_of(plan.num_tokens)
            took(plan, seconds_of(plan.num_tokens))
            return plan

        schedule = self.scheduler.schedule
        self.scheduler.schedule = lambda num_steps=1: noted(schedule(num_steps))  # type: ignore[method-assign]
        self.steps_to_end(sequences)
        self.scheduler.schedule = schedule  # type: ignore[method-assign]
        return self.seconds - began

    def steps_to_end(self, sequences: list[Sequence]) -> int:
        start = self.num_steps
        while any(one.state is not SequenceState.FINISHED for one in sequences):
            self.step()
            assert self.num_steps - start < 5000
        return self.num_steps - start


@settings(max_examples=60)
@given(
    policy=st.sampled_from(ADMISSIONS),
    lengths=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 30)), min_size=1, max_size=25),
    num_blocks=st.integers(13, 40),
    seed=st.integers(0, 3),
    share=st.sampled_from([ONLY, Share("somebody", 7.0)]),
)
def test_one_group_runs_as_if_there_were_none(
    policy: str, lengths: list[tuple[int, int]], num_blocks: int, seed: int, share: Share
) -> None:
    def plans(*, is_bare: bool) -> list[list[tuple[int, int, int]]]:
        numbers = random.Random(seed)
        bench = Bench(policy, num_blocks, saved_tokens=10)
        if is_bare:
            bench.scheduler._admission = cast("FairShares", Bare(bench.scheduler._admission))
        cache, seen, left = CacheModel(4), [], list(lengths)
        scheduler = bench.scheduler
        while left or scheduler.num_running or scheduler.num_waiting:
            while left and numbers.random() < 0.5:
                prompt, max_tokens = left.pop()
                bench.add(share, 1, prompt=prompt, max_tokens=max_tokens)
            if not (scheduler.num_running or scheduler.num_waiting):
                continue
            sampled = cache.run(scheduler, BUDGET)
            seen.append([(one.arrival, one.num_computed_tokens, one.row or 0) for one in scheduler.running])
            for sequence in sampled:
                sequence.token_ids.append(numbers.randrange(3))
                if sequence.num_output_tokens >= sequence.params.max_tokens:
                    scheduler.finish(sequence, FinishReason.LENGTH)
        return seen

    assert plans(is_bare=False) == plans(is_bare=True)


@pytest.mark.parametrize("policy", ADMISSIONS)
@pytest.mark.parametrize("count", [1, 5, ROWS, 4 * ROWS])
def test_a_small_group_needs_at_most_twice_its_time_alone(policy: str, count: int) -> None:
    alone = Bench(policy)
    steps_alone = alone.steps_to_end(alone.add(SMALL, count))
    bench = Bench(policy)
    bench.add(BIG, 100 * count, max_tokens=400)
    for _ in range(50):
        bench.step()
    before = bench.num_tokens[BIG.group]
    assert bench.steps_to_end(bench.add(SMALL, count)) <= 2 * steps_alone + 2
    assert bench.num_tokens[BIG.group] > before, "the oldest goes on"


def test_who_gave_way_loses_nothing() -> None:
    bench = Bench()
    big = bench.add(BIG, ROWS, max_tokens=200)
    for _ in range(20):
        bench.step()
    bench.steps_to_end(bench.add(SMALL, ROWS))
    bench.steps_to_end(big)
    assert [one.num_output_tokens for one in big] == [200] * ROWS
    stats = bench.scheduler.stats
    assert 0 < stats.preemptions < ROWS
    assert stats.resumed_tokens > stats.recomputed_tokens, "their Blocks were still cached"


@pytest.mark.parametrize("policy", ADMISSIONS)
def test_weights_divide_the_engine(policy: str) -> None:
    bench = Bench(policy, saved_tokens=400)
    heavy, light = Share("heavy", 3.0), Share("light", 1.0)
    bench.add(heavy, 400)
    bench.add(light, 400)
    while bench.num_tokens.total() < 12_000:
        bench.step()
    assert 2.5 < bench.num_tokens["heavy"] / bench.num_tokens["light"] < 3.5


@pytest.mark.parametrize("late", [False, True])
def test_two_backlogs_share_evenly_and_do_not_push_each_other_out(late: bool) -> None:
    bench = Bench(saved_tokens=2000)
    bench.add(BIG, 400)
    if late:
        for _ in range(200):
            bench.step()
    bench.add(SMALL, 400)
    while bench.num_tokens[SMALL.group] < 3000:  # its savings are used up
        bench.step()
    bench.num_tokens.clear()
    preemptions = bench.scheduler.stats.preemptions
    while bench.num_tokens.total() < 8000:
        bench.step()
    assert 0.8 < bench.num_tokens[BIG.group] / bench.num_tokens[SMALL.group] < 1.25
    assert bench.scheduler.stats.preemptions == preemptions


def test_a_long_prompt_that_finds_no_room_is_not_passed_by_other_groups() -> None:
    bench = Bench("fifo", num_blocks=40)
    bench.add(BIG, 200, prompt=30, max_tokens=10)
    for _ in range(5):
        bench.step()
    [long] = bench.add(SMALL, 1, prompt=120, max_tokens=10)
    assert bench.steps_to_end([long]) < 60


def test_limits_that_are_never_reached_do_not_count_in_the_end() -> None:
    bench = Bench(saved_tokens=400)
    shares = {"modest": Share("modest"), "greedy": Share("greedy")}
    for name, limit in (("modest", 20), ("greedy", 120)):
        for sequence in bench.add(shares[name], 400, max_tokens=limit):
            sequence.stop_token_ids = frozenset({9})
    while bench.num_tokens.total() < 12_000:
        bench.step()
        for sequence in bench.scheduler.running:
            if sequence.num_output_tokens >= 19:
                bench.scheduler.finish(sequence, FinishReason.STOP)
    assert 0.75 < bench.num_tokens["modest"] / bench.num_tokens["greedy"] < 1.33


def test_a_large_newcomer_does_not_go_before_who_has_had_little() -> None:
    bench = Bench()
    alone = bench.steps_to_end(bench.add(SMALL, ROWS))
    bench.add(BIG, 100)
    bench.step()
    assert bench.steps_to_end(bench.add(SMALL, ROWS)) <= 2 * alone + 2


def test_groups_that_have_left_are_forgotten() -> None:
    bench = Bench()
    bench.add(BIG, 50, max_tokens=1000)
    for number in range(MAX_IDLE_GROUPS + 50):
        bench.steps_to_end(bench.add(Share(number), 1, max_tokens=1))
    assert len(bench.scheduler._admission._groups) <= MAX_IDLE_GROUPS + 2


def test_when_there_is_no_work_nobody_is_behind() -> None:
    bench = Bench()
    bench.steps_to_end(bench.add(BIG, 20) + bench.add(SMALL, 1))
    bench.add(BIG, 1)
    assert [group.served for group in bench.scheduler._admission._groups.values()] == [0.0]
