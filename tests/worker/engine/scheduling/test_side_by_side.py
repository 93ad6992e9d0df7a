"""Steps that run side by side, over a pool that is too small: no Slot is wrong, and everything ends."""

import random
from types import SimpleNamespace

import pytest

from tests.fixtures.scheduling import CacheModel, make_scheduler, make_sequence
from worker.engine.requests.config import ADMISSIONS
from worker.engine.requests.share import ONLY, Share
from worker.engine.scheduling import scheduler as scheduler_module
from worker.engine.scheduling import step_limits
from worker.engine.scheduling.plan import StepPlan
from worker.engine.scheduling.scheduler import Scheduler
from worker.engine.sequences.sequence import Sequence, SequenceState
from worker.values.outcomes import FinishReason

END = 9  # a token that ends an output
BUDGET, ROWS, BLOCK_SIZE, NUM_BLOCKS = 24, 8, 3, 20
NUM_SEQUENCES, MOST_ACTIONS = 40, 4000
URGENT = 0.1  # share of the Sequences
HEADS = [(), (1,) * 7, (1,) * 4 + (2,) * 8]
SHARES = [ONLY, Share("a"), Share("b", 3.0), Share("b", 3.0, 2, "one"), Share("b", 3.0, 0, "two")]


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "LEAST_ROWS", 1)


class Run:
    """Sequences that arrive, run in up to `steps_at_once` Steps and are cancelled, all at random."""

    def __init__(self, seed: int, policy: str, steps_at_once: int) -> None:
        self.random = random.Random(seed)
        saved_tokens = self.random.choice([0, 40, 1000])
        self.scheduler: Scheduler = make_scheduler(
            NUM_BLOCKS,
            BLOCK_SIZE,
            ROWS,
            BUDGET,
            policy=policy,
            saved_tokens=saved_tokens,
            steps_at_once=steps_at_once,
        )
        self.cache = CacheModel(BLOCK_SIZE)
        self.steps_at_once = steps_at_once
        self.added: list[Sequence] = []
        self.beside: list[StepPlan] = []
        self.most_beside = self.num_cancelled_inside = 0

    @property
    def unfinished(self) -> list[Sequence]:
        return [one for one in self.added if one.state is not SequenceState.FINISHED]

    def act(self) -> None:
        if len(self.added) < NUM_SEQUENCES and self.random.random() < 0.3:
            self._add()
        elif self.random.random() < 0.03 and self.unfinished:
            sequence = self.random.choice(self.unfinished)
            self.num_cancelled_inside += sequence.is_in_step
            self.scheduler.finish(sequence, FinishReason.CANCELLED)
        elif self._can_begin and self.random.random() < 0.7:
            plan = self.cache.begin(self.scheduler, self.steps_at_once)
            self.beside += [] if plan is None else [plan]
            self.most_beside = max(self.most_beside, len(self.beside))
        elif self.beside:
            plan = self.beside.pop(self.random.randrange(len(self.beside)))
            self._take(self.cache.end(plan, self.scheduler))
        elif self.unfinished and not self._can_begin:
            self._take(self.cache.run(self.scheduler, BUDGET, self.steps_at_once))
        self.scheduler.check_integrity()
        assert self.scheduler.num_running <= ROWS * self.steps_at_once

    @property
    def _can_begin(self) -> bool:
        return (
            len(self.beside) < self.steps_at_once
            and self.scheduler.rows_beside(self.steps_at_once) is not None
            and self.scheduler.has_others
        )

    def _add(self) -> None:
        tail = [self.random.randint(1, 2) for _ in range(self.random.randint(1, 9))]
        prompt = [*self.random.choice(HEADS), *tail]
        longest = min(self.random.randint(1, 20), BLOCK_SIZE * NUM_BLOCKS - len(prompt))
        sequence = make_sequence(
            len(self.added),
            prompt,
            longest,
            stop_token_ids=frozenset({END}),
            share=self.random.choice(SHARES),
        )
        sequence.is_urgent = self.random.random() < URGENT
        self.added.append(sequence)
        self.scheduler.add(sequence)

    def _take(self, sampled: list[Sequence]) -> None:
        for sequence in sampled:
            sequence.token_ids.append(self.random.choice([1, 1, 1, 2, 2, 2, 2, END]))
            if sequence.token_ids[-1] == END:
                self.scheduler.finish(sequence, FinishReason.STOP)
            elif sequence.num_output_tokens >= sequence.params.max_tokens:
                self.scheduler.finish(sequence, FinishReason.LENGTH)


@pytest.mark.parametrize("steps_at_once", [2, 3])
@pytest.mark.parametrize("policy", ADMISSIONS)
def test_no_slot_is_wrong_and_everything_ends(policy: str, steps_at_once: int) -> None:
    preemptions = num_cancelled_inside = most_beside = 0
    for seed in range(25):
        run = Run(seed, policy, steps_at_once)
        for _ in range(MOST_ACTIONS):
            run.act()
            if len(run.added) == NUM_SEQUENCES and not (run.unfinished or run.beside):
                break
        assert not run.unfinished, "livelock"
        assert run.scheduler.block_pool.num_free_blocks == NUM_BLOCKS
        most_beside = max(most_beside, run.most_beside)
        preemptions += run.scheduler.stats.preemptions
        num_cancelled_inside += run.num_cancelled_inside
    assert most_beside == steps_at_once
    assert preemptions
    assert num_cancelled_inside


def test_rows_are_shared_evenly() -> None:
    scheduler = make_scheduler(200, BLOCK_SIZE, ROWS // 2, BUDGET, steps_at_once=2)
    for arrival in range(ROWS + 3):
        scheduler.add(make_sequence(arrival, [1 + arrival]))
    cache = CacheModel(BLOCK_SIZE)
    plans = [cache.begin(scheduler, 2) for _ in range(2)]
    assert [plan is not None and len(plan.entries) for plan in plans] == [ROWS // 2, ROWS // 2]
    assert cache.begin(scheduler, 2) is None, "all that run are in a Step"
    # What one Step leaves out, the other one takes.
    first, second = [plan for plan in plans if plan is not None]
    for sequence in [entry.sequence for entry in first.entries]:
        scheduler.finish(sequence, FinishReason.CANCELLED)
    assert cache.end(first, scheduler) == []
    replaced = cache.begin(scheduler, 2)
    assert replaced is not None
    assert len(replaced.entries) == 3, "those that waited"
    for sequence in cache.end(second, scheduler):
        sequence.token_ids.append(1)
    again = cache.begin(scheduler, 2)
    assert again is not None
    assert len(again.entries) == 4
    scheduler.finish(again.entries[0].sequence, FinishReason.CANCELLED)
    scheduler.check_integrity()
    assert scheduler.num_running == 6
    assert scheduler.rows_beside(2) == 3


def test_few_sequences_share_all_tokens() -> None:
    scheduler = make_scheduler(200, BLOCK_SIZE, ROWS, BUDGET)
    for arrival in range(4):
        scheduler.add(make_sequence(arrival, [1 + arrival] * BUDGET))
    cache = CacheModel(BLOCK_SIZE)
    plans = [cache.begin(scheduler, 2) for _ in range(2)]
    assert [plan is not None and plan.num_tokens for plan in plans] == [BUDGET // 2] * 2


def test_fewer_run_while_urgent_work_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(step_limits, "time", SimpleNamespace(monotonic=lambda: now))
    scheduler = make_scheduler(200, BLOCK_SIZE, ROWS, BUDGET, steps_at_once=2)
    sequences = [make_sequence(arrival, [1 + arrival], 60) for arrival in range(5 * ROWS)]
    for sequence in sequences:
        scheduler.add(sequence)
    cache = CacheModel(BLOCK_SIZE)

    def run() -> tuple[int, ...]:
        """Run a Step, or two at once, and return how many Sequences each has."""
        plans = [cache.begin(scheduler, 2) for _ in range(2)]
        for plan in plans:
            assert plan is not None
            for sequence in cache.end(plan, scheduler):
                sequence.token_ids.append(1)
        return tuple([len(plan.entries) for plan in plans if plan is not None])

    assert run() == (ROWS, ROWS)
    for sequence in sequences[:2]:
        scheduler.finish(sequence, FinishReason.STOP)
    # Rows are free, so nobody is preempted for an urgent Sequence, and none of the others starts.
    urgent = make_sequence(len(sequences), [9], 60)
    urgent.is_urgent = True
    scheduler.add(urgent)
    for others in (0, ROWS - 1):
        chosen = cache.run(scheduler, BUDGET, 2)
        assert chosen == [urgent, *sequences[2 : 2 + others]]
        for sequence in chosen:
            sequence.token_ids.append(1)
    assert scheduler.num_running == 2 * ROWS - 1
    assert not scheduler.stats.preemptions
    # They run two Steps at once again, and none of those that wait starts until they fit one Step.
    now += 100.0
    scheduler.schedule(2)
    scheduler.finish(urgent, FinishReason.STOP)
    now += step_limits.URGENT_SECONDS - 0.1
    assert run() == (ROWS - 1, ROWS - 1)
    for sequence in scheduler.running[3:]:
        scheduler.finish(sequence, FinishReason.STOP)
    assert run() == (ROWS // 2, ROWS // 2)
    now += 0.2
    assert run() == (ROWS, ROWS)
    scheduler.check_integrity()


@pytest.mark.parametrize("kind", ["is_urgent", "is_alone"])
def test_some_sequences_need_all_threads(kind: str) -> None:
    scheduler = make_scheduler(200, BLOCK_SIZE, ROWS, BUDGET)
    for arrival in range(4):
        scheduler.add(make_sequence(arrival, [1]))
    assert scheduler.rows_beside(2) == 2
    special = make_sequence(4, [1])
    setattr(special, kind, True)
    scheduler.add(special)
    scheduler.schedule()
    assert scheduler.rows_beside(2) is None
    scheduler.finish(special)
    assert scheduler.rows_beside(2) == 2


def test_few_sequences_run_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "LEAST_ROWS", 2)
    scheduler = make_scheduler(200, BLOCK_SIZE, ROWS, BUDGET)
    for arrival, rows in enumerate([None, None, None, 2, 3, 3, 4, 4, 4]):
        scheduler.add(make_sequence(arrival, [1]))
        assert scheduler.rows_beside(2) == rows


def test_few_long_prompts_run_beside_others_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "LEAST_ROWS", 3)
    scheduler = make_scheduler(200, BLOCK_SIZE, ROWS, BUDGET, steps_at_once=2)
    for arrival in range(6):
        scheduler.add(make_sequence(arrival, [1 + arrival] * BUDGET))
    cache = CacheModel(BLOCK_SIZE)
    plans = [cache.begin(scheduler, 2) for _ in range(2)]
    assert [plan is not None and len(plan.entries) for plan in plans] == [1, 1]


def test_few_sequences_run_alone_if_the_others_find_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "LEAST_ROWS", 3)
    scheduler = make_scheduler(2, BLOCK_SIZE, ROWS, BUDGET, steps_at_once=2)
    for arrival in range(6):
        scheduler.add(make_sequence(arrival, [1 + arrival] * (BLOCK_SIZE + 1), max_tokens=1))
    plan = scheduler.schedule(2)
    assert len(plan.entries) == 1
    assert not plan.is_beside


def test_a_model_may_ask_for_more_sequences_in_each_step() -> None:
    scheduler = make_scheduler(200, BLOCK_SIZE, ROWS, BUDGET, least_rows_beside=3)
    for arrival, rows in enumerate([None, None, None, None, None, 3, 4]):
        scheduler.add(make_sequence(arrival, [1]))
        assert scheduler.rows_beside(2) == rows
