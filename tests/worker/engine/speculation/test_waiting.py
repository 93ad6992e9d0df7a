"""A GPU waits for its tokens where the guesses that this allows yield more than Steps that start ahead."""

from collections.abc import Callable

import pytest

from tests.fixtures.scheduling import make_sequence
from worker.engine.requests.stats import EngineStats
from worker.engine.scheduling.block_pool import BlockPool
from worker.engine.scheduling.plan import ScheduledSequence, StepPlan
from worker.engine.speculation.speculation import Speculation
from worker.engine.speculation.waiting import LAST_GAP, SKIPPED, TRY, WINDOW, Waiting
from worker.values.sampling import Optimization, SamplingParams

# Of (number of Sequences, whether the Step waits): its seconds, and the tokens of each Sequence.
Steps = Callable[[int, bool], tuple[float, int]]


class Machine:
    """Runs decode Steps by a clock of its own."""

    def __init__(self, steps: Steps) -> None:
        self.now, self.steps = 0.0, steps
        self.waiting = Waiting(lambda: self.now)

    def run(self, count: int, num_sequences: int = 1) -> list[bool]:
        """Run some Steps; return which of them waited."""
        plan = plan_of(num_sequences)
        return [self.step(plan) for _ in range(count)]

    def step(self, plan: StepPlan) -> bool:
        waits = self.waiting.wants(plan)
        seconds, num_tokens = self.steps(len(plan.entries), waits)
        self.now += seconds
        self.waiting.took(plan, num_tokens * len(plan.entries))
        return waits


def plan_of(count: int, params: SamplingParams | None = None, *, num_tokens: int = 1) -> StepPlan:
    entries = []
    for index in range(count):
        sequence = make_sequence(index, (1, 2, 3), 40)
        sequence.params = params or sequence.params
        sequence.needs_logprobs = sequence.params.needs_logprobs
        entries.append(ScheduledSequence(sequence, 3 - num_tokens, num_tokens, is_sampled=True))
    return StepPlan(tuple(entries))


def share(waited: list[bool]) -> float:
    return sum(waited) / len(waited)


@pytest.mark.parametrize(("num_right", "waits"), [(1, True), (0, False)])
def test_the_kind_that_yields_more_wins(num_right: int, waits: bool) -> None:
    """A Step that waits takes a third longer."""
    machine = Machine(lambda _, waits: (1.33, 1 + num_right) if waits else (1.0, 1))
    machine.run(1000)
    assert (share(machine.run(5000)) > 0.9) == waits
    assert (share(machine.run(5000)) < 0.1) == (not waits)


def test_a_full_batch_loses_nothing() -> None:
    machine = Machine(lambda _, waits: (1.3, 1) if waits else (1.0, 1))
    machine.run(20_000, 64)
    assert 20_000 < machine.now < 1.01 * 20_000


def test_the_dearer_a_try_the_rarer_it_is() -> None:
    def seconds(count: int, dear: float) -> float:
        machine = Machine(lambda _, waits: (dear, 1) if waits else (1.0, 1))
        machine.run(count)
        return machine.now

    assert 20_000 < seconds(20_000, 1.63) < 1.01 * 20_000
    tried = [round((seconds(5_000, dear) - 5_000) / (dear - 1)) for dear in (1.05, 3.0)]
    assert tried[0] > 3 * TRY * WINDOW, "a cheap one soon again"
    assert tried[1] < 1.5 * TRY * WINDOW


def test_what_changes_is_noticed() -> None:
    gain = 0
    machine = Machine(lambda _, waits: (1.2, 1 + gain) if waits else (1.0, 1))
    machine.run(3000)
    gain = 1
    machine.run((LAST_GAP + TRY + 1) * (WINDOW + SKIPPED))
    assert all(machine.run(WINDOW))


def test_each_number_of_sequences_has_its_own_kind() -> None:
    machine = Machine(lambda count, waits: (1.2, 2 if count < 4 else 1) if waits else (1.0, 1))
    for _ in range(40):
        machine.run(100, 2)
        machine.run(100, 64)
    assert share(machine.run(2000, 2)) > 0.9
    assert share(machine.run(2000, 64)) < 0.1


def test_prompts_and_rests_do_not_count() -> None:
    """Where they counted for either kind, that one would seem slow."""
    machine = Machine(lambda _, waits: (1.2, 2) if waits else (1.0, 1))
    machine.run(1000)
    for _ in range(300):
        machine.run(20)
        machine.now += 100.0
        machine.waiting.rest()
        machine.run(20)
        assert not machine.waiting.wants(plan_of(1, num_tokens=3))
        machine.now += 50.0
        machine.waiting.took(plan_of(1, num_tokens=3), 1)
    assert share(machine.run(2000)) > 0.9


def test_requests_that_are_not_guessed_for_never_wait() -> None:
    machine = Machine(lambda *_: (1.0, 1))
    plan = plan_of(2, SamplingParams(optimization=Optimization.BASIC))
    assert not any(machine.step(plan) for _ in range(500))


def test_tokens_that_come_to_the_host_anyway_are_guessed_after() -> None:
    machine = Machine(lambda *_: (1.0, 1))
    assert all(machine.step(plan_of(1, SamplingParams(logprobs=1))) for _ in range(10))


def test_a_token_more_costs_a_gpu_next_to_nothing_until_it_is_measured() -> None:
    made = Speculation([], BlockPool(1), EngineStats(), block_size=4, waiting=Waiting())
    made.times.add(4, 1.0)
    assert made.times.seconds(17) == 273 / 260
    made.times.add(17, 2.0)
    assert made.times.seconds(17) == 2.0
