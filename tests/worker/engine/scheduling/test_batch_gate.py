"""Each batch policy holds generations back as it says, on the real Scheduler, and nothing waits for ever."""

import random
from typing import Any

import pytest

from tests.fixtures.clock import Clock
from tests.fixtures.scheduling import make_scheduler, make_sequence
from worker.engine.requests.batch_policy import POLICIES, batch_policy
from worker.engine.requests.share import ONLY, Share
from worker.engine.sequences.sequence import Sequence, SequenceState
from worker.values.outcomes import FinishReason

ROWS, BLOCK_SIZE = 8, 4


class Bench:
    """A Scheduler of one policy on a clock that Steps move, and what runs on it."""

    def __init__(
        self, name: str, *, num_blocks: int = 256, is_caching: bool = False, **parameters: Any
    ) -> None:
        self.clock = Clock()
        self.scheduler = make_scheduler(
            num_blocks,
            BLOCK_SIZE,
            ROWS,
            64,
            is_caching=is_caching,
            policy="length-aware",
            batch_policy=batch_policy(name, **parameters),
            clock=self.clock,
        )
        self.added: list[Sequence] = []

    def add(
        self, count: int = 1, *, length: int = 4, max_tokens: int = 4, share: Share = ONLY, **kind: bool
    ) -> list[Sequence]:
        new = []
        for _ in range(count):
            number = len(self.added)
            sequence = make_sequence(number, [number % 250] * length, max_tokens, share=share)
            for name, value in kind.items():
                setattr(sequence, name, value)
            self.added.append(sequence)
            self.scheduler.add(sequence)
            new.append(sequence)
        return new

    def step(self, seconds: float = 1.0) -> list[int]:
        """Run one Step; return the requests that run in it."""
        plan = self.scheduler.schedule()
        running = [one.arrival for one in self.scheduler.running]
        self.scheduler.advance(plan)
        if plan.entries:
            self.scheduler.took(plan, seconds)
        self.clock.now += seconds
        for entry in plan.entries:
            sequence = entry.sequence
            if entry.is_sampled:
                sequence.token_ids.append(1)
                if sequence.num_output_tokens >= sequence.params.max_tokens:
                    self.scheduler.finish(sequence, FinishReason.LENGTH)
            elif not (sequence.is_generating or sequence.num_uncomputed_tokens):
                self.scheduler.finish(sequence)
        self.scheduler.check_integrity()
        return running

    @property
    def unfinished(self) -> list[Sequence]:
        return [one for one in self.added if one.state is not SequenceState.FINISHED]


def test_continuous_batching_starts_what_has_room() -> None:
    bench = Bench("continuous")
    bench.add(2)
    assert bench.step() == [0, 1]
    bench.add(1)
    assert bench.step() == [0, 1, 2]


def test_a_fixed_batch_waits_until_it_is_full_and_for_the_last_one_to_end() -> None:
    bench = Bench("fixed", size=3, timeout_seconds=10.0)
    bench.add(2)
    assert bench.step() == []
    assert bench.scheduler.wait_seconds == 9.0
    bench.add(2)
    assert bench.scheduler.wait_seconds == 0.0
    assert bench.step() == [0, 1, 2]
    bench.add(3)
    assert [bench.step() for _ in range(3)] == [[0, 1, 2]] * 3
    assert len(bench.step()) == 3
    assert len(bench.unfinished) == 4


def test_a_fixed_batch_that_is_not_full_starts_when_its_time_is_up() -> None:
    bench = Bench("fixed", size=3, timeout_seconds=10.0)
    bench.add(1)
    assert [bench.step() for _ in range(11)] == [[]] * 10 + [[0]]


def test_a_large_batch_starts_over_several_steps() -> None:
    bench = Bench("fixed", size=6, timeout_seconds=10.0)
    bench.add(8, length=20, max_tokens=9)
    sizes = [len(bench.step()) for _ in range(5)]
    assert sizes[0] < 6, "the Step is smaller than the batch"
    assert sizes[-1] == 6


def test_a_window_lets_in_who_has_waited_for_it() -> None:
    bench = Bench("window", timeout_seconds=5.0)
    bench.add(1, max_tokens=20)
    assert bench.step() == [0]
    bench.add(2, max_tokens=20)
    assert [bench.step() for _ in range(5)] == [[0]] * 4 + [[0, 1, 2]]
    bench.add(1)
    assert [bench.step() for _ in range(5)] == [[0, 1, 2]] * 4 + [[0, 1, 2, 3]]


def test_adaptive_size_follows_the_time_of_steps() -> None:
    bench = Bench("adaptive", latency_seconds=1.0)

    def settled(seconds: float) -> int:
        for _ in range(100):
            bench.add(ROWS - len(bench.unfinished) + 1)
            size = len(bench.step(seconds))
        return size

    assert settled(0.1) == ROWS
    assert settled(0.9) == ROWS, "between 0.8 of the target and the target nothing changes"
    assert settled(2.0) == 1
    assert settled(0.9) == 1
    assert settled(0.7) == ROWS


@pytest.mark.parametrize(("name", "starts"), [("continuous", False), ("priority", True)])
def test_waiting_makes_up_for_priority(name: str, starts: bool) -> None:
    parameters = {"priority_seconds": 10.0} if name == "priority" else {}
    bench = Bench(name, **parameters)
    bench.add(ROWS, share=Share(batch="high", priority=2))
    (low,) = bench.add(1, share=Share(batch="low", priority=0))
    for _ in range(60):
        bench.add(1 + ROWS - len(bench.unfinished) + 1, share=Share(batch="high", priority=2))
        bench.step()
    assert (low.state is SequenceState.FINISHED) is starts


def test_priority_goes_first_until_the_wait_is_worth_as_much() -> None:
    bench = Bench("priority", priority_seconds=10.0)
    high = Share(batch="high", priority=2)
    bench.add(ROWS, share=high)
    bench.step()
    (low,) = bench.add(1, share=Share(batch="low", priority=0))
    more = bench.add(ROWS, share=high)
    while any(one.state is SequenceState.WAITING for one in more):
        bench.step()
    assert low.state is SequenceState.WAITING
    assert not bench.scheduler.stats.preemptions


def test_prompts_of_one_bucket_run_together() -> None:
    bench = Bench("length-buckets", lengths=(10,), timeout_seconds=3.0)
    bench.add(2, length=4)
    bench.add(2, length=30)
    for _ in range(60):
        if not bench.unfinished:
            break
        running = [bench.added[number].num_prompt_tokens > 10 for number in bench.step()]
        assert len(set(running)) <= 1
    assert not bench.unfinished


def test_a_bucket_gives_way_to_another_that_has_waited() -> None:
    bench = Bench("length-buckets", lengths=(10,), timeout_seconds=3.0)
    bench.add(2, length=4)
    bench.step()
    (long,) = bench.add(1, length=30)
    for _ in range(40):
        bench.add(1, length=4)
        bench.step()
    assert long.state is SequenceState.FINISHED


@pytest.mark.parametrize(
    ("name", "parameters", "unit"),
    [("token-budget", {"tokens": 40}, 1), ("memory", {"memory_share": 10 / 256}, BLOCK_SIZE)],
)
def test_what_runs_fits_the_budget_at_its_longest(name: str, parameters: dict[str, Any], unit: int) -> None:
    bench = Bench(name, **parameters)
    limit = 40 // unit
    bench.add(6, length=5, max_tokens=6)
    (large,) = bench.add(1, length=30, max_tokens=40)
    bench.add(3, length=5, max_tokens=6)
    most = 0
    while bench.unfinished:
        running = [bench.added[number] for number in bench.step()]
        needs = [-(-(one.num_prompt_tokens + one.params.max_tokens) // unit) for one in running]
        assert sum(needs) <= limit or running == [large], "alone, it may be over the budget"
        most = max(most, len(running))
    assert most == limit // -(-11 // unit)
    assert not bench.scheduler.stats.preemptions


def test_urgent_work_and_readings_pass_every_gate() -> None:
    bench = Bench("fixed", size=ROWS, timeout_seconds=1000.0)
    bench.add(2)
    assert bench.step() == []
    bench.add(1, is_urgent=True)
    bench.add(1, is_generating=False)
    assert bench.scheduler.wait_seconds == 0.0
    assert set(bench.step()) | set(bench.step()) == {2, 3}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", POLICIES)
def test_everything_ends(name: str, seed: int) -> None:
    """Whatever comes, of whomever, over a pool that is too small, with cancels."""
    rng = random.Random(seed)
    shares = [ONLY, Share("a", batch="one"), Share("a", batch="two", priority=3), Share("b", 3.0)]
    small = {"token-budget": {"tokens": 60}, "fixed": {"size": 3}, "length-buckets": {"lengths": (6, 12)}}
    bench = Bench(name, num_blocks=20, is_caching=seed % 2 == 0, timeout_seconds=4.0, **small.get(name, {}))
    for _ in range(120):
        if rng.random() < 0.6:
            bench.add(
                rng.randint(1, 3),
                length=rng.randint(1, 30),
                max_tokens=rng.randint(1, 20),
                share=rng.choice(shares),
                is_urgent=rng.random() < 0.1,
                is_generating=rng.random() < 0.9,
            )
        if rng.random() < 0.1 and bench.unfinished:
            bench.scheduler.finish(rng.choice(bench.unfinished))
        bench.step(rng.choice([0.1, 0.5]))
    for _ in range(20_000):
        if not bench.unfinished:
            break
        wait = bench.scheduler.wait_seconds
        assert wait is not None, "what is unfinished runs or waits"
        bench.clock.now += wait
        bench.step(0.1)
    assert not bench.unfinished
    assert bench.scheduler.wait_seconds is None
