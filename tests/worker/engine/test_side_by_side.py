"""Two threads run Steps side by side: tokens are those of one thread, and every way to end still works."""

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fixtures.generation import greedy, make_engine, run
from tests.worker.engine.test_engine_thread import WAIT_SECONDS, collect
from worker.engine.choosing.chosen_tokens import Chosen
from worker.engine.engine_thread import EngineThread
from worker.engine.requests.batch_policy import BatchPolicy
from worker.engine.requests.errors import EngineFailedError, EngineStoppedError, OutOfMemoryError
from worker.engine.requests.generation import GenerationRequest
from worker.engine.requests.scoring import ScoringRequest
from worker.engine.running import model_runner
from worker.engine.running.model_runner import ROWS_WORTH_READING, ModelRunner
from worker.engine.scheduling import scheduler
from worker.engine.scheduling.plan import StepPlan
from worker.values.results import Choice

ROWS = 24
LIMITS: dict[str, Any] = {"dtype": "int8", "block_size": 16, "max_num_sequences": ROWS}
pytestmark = pytest.mark.usefixtures("only_on_cpu")


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "LEAST_ROWS", 2)


@contextmanager
def _started(model: Path, **overrides: Any) -> Iterator[EngineThread]:
    thread = EngineThread(lambda: make_engine(model, **LIMITS | {"num_threads": 2} | overrides))
    thread.start()
    try:
        if not thread._loaded_engine()._runner.is_one_region:
            pytest.skip("int8 does not run in one region here")
        yield thread
    finally:
        thread.stop()


def _requests(count: int, **overrides: Any) -> list[GenerationRequest]:
    numbers = random.Random(3)
    prefix = tuple(numbers.randrange(2, 300) for _ in range(33))
    requests = []
    for index in range(count):
        own = tuple(numbers.randrange(2, 300) for _ in range(numbers.randint(1, 60)))
        params = greedy(numbers.randint(1, 40), temperature=index % 2, seed=index, **overrides)
        requests.append(GenerationRequest(index, (*prefix, *own) if index % 3 else own, params))
    return requests


class Watch:
    """Counts how many Steps run at once, and may do something as one begins."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = self.now = self.num_steps = 0
        self.threads: set[str] = set()
        self.at_begin: Callable[[], None] = lambda: None  # before the model runs, with the guard
        self.inside: Callable[[], None] = lambda: None  # without it
        execute = ModelRunner.execute_beside

        def watched(
            runner: ModelRunner, plan: StepPlan, count: int, outside: AbstractContextManager[None]
        ) -> Chosen:
            self.now += 1
            self.num_steps += 1
            self.most = max(self.most, self.now)
            self.threads.add(threading.current_thread().name)
            try:
                self.at_begin()
                return execute(runner, plan, count, self._both(outside))
            finally:
                self.now -= 1

        monkeypatch.setattr(ModelRunner, "execute_beside", watched)

    @contextmanager
    def _both(self, outside: AbstractContextManager[None]) -> Iterator[None]:
        with outside:
            self.inside()
            yield


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"num_blocks": 30},
        {"num_blocks": 24, "admission": "fifo"},
        {"max_tokens_per_step": 30},
        {"enable_prefix_cache": False},
    ],
    ids=str,
)
def test_tokens_are_those_of_one_thread(tiny_llama: Path, watch: Watch, overrides: dict[str, Any]) -> None:
    requests = _requests(70)
    expected = [one.token_ids for one in run(make_engine(tiny_llama, **LIMITS), requests)]
    with _started(tiny_llama, **overrides) as thread:
        assert [one.token_ids for one in collect(thread.submit(requests))] == expected
        stats = thread.stats
        assert thread.block_use.num_used == 0
        assert thread.limits["max_num_sequences"] * thread.limits["steps_at_once"] == 2 * ROWS
        thread._loaded_engine().check_integrity()
    assert watch.most == 2
    assert watch.threads == {"engine", "engine-2"}
    assert stats.decode_tokens == sum(map(len, expected))


def test_each_second_is_charged_once(tiny_llama: Path, watch: Watch) -> None:
    with _started(tiny_llama) as thread:
        began_at = time.monotonic()
        completions = collect(thread.submit(_requests(70)))
        seconds = time.monotonic() - began_at
        stats = thread.stats
    assert watch.most == 2
    charged = stats.prefill_seconds + stats.decode_seconds + stats.padding_seconds
    assert 0 < charged <= seconds
    assert sum(one.seconds.prefill + one.seconds.decode for one in completions) == pytest.approx(charged)
    assert 0.5 < stats.scheduled_sequences / stats.sequence_rows <= 1.0, "a Step's rows, not the engine's"


def test_choices_and_readings_run_beside_each_other(tiny_llama: Path, watch: Watch) -> None:
    requests = [replace(one, params=replace(one.params, n=3)) for one in _requests(20)]
    expected = [one.choices for one in run(make_engine(tiny_llama, **LIMITS), requests)]
    with _started(tiny_llama) as thread:
        submission = thread.submit(requests)
        readings = thread.submit([ScoringRequest(index, (5, 6, 7), ((8,), (9,))) for index in range(5)])
        assert len(collect(readings)) == 5
        assert [_texts(one.choices) for one in collect(submission)] == [_texts(one) for one in expected]
    assert watch.most == 2


def _texts(choices: Iterable[Choice]) -> list[tuple[int, ...]]:
    return [choice.token_ids for choice in choices]


def test_cancelled_while_its_step_runs(tiny_llama: Path, watch: Watch) -> None:
    requests = _requests(60)
    expected = [one.token_ids for one in run(make_engine(tiny_llama, **LIMITS), requests)]
    with _started(tiny_llama) as thread:
        submission = thread.submit(requests)
        cancelled = list(range(0, 60, 7))

        def cancel() -> None:
            if watch.num_steps % 4 == 0 and cancelled:
                submission.cancel(cancelled.pop())

        watch.at_begin = cancel
        completions = collect(submission)
        assert thread.block_use.num_used == 0
        thread._loaded_engine().check_integrity()
    assert not cancelled
    for completion, tokens in zip(completions, expected, strict=True):
        assert completion.token_ids == tokens[: len(completion.token_ids)]
        if int(str(completion.id)) % 7:
            assert completion.token_ids == tokens
    assert watch.most == 2


def test_an_urgent_request_runs_on_all_threads(tiny_llama: Path, watch: Watch) -> None:
    with _started(tiny_llama) as thread:
        long = [GenerationRequest(index, (5, index + 2), greedy(100)) for index in range(2 * ROWS)]
        submission = thread.submit(long)
        while watch.num_steps < 20:
            time.sleep(0.001)
        urgent = GenerationRequest("now", (7, 8, 9), greedy(4), priority=1)
        (completion,) = thread.submit([urgent]).take(WAIT_SECONDS)
        assert len(completion.token_ids) == 4
        assert submission.num_open, "the others still run"
        num_before = watch.num_steps
        assert all(len(one.token_ids) == 100 for one in collect(submission))
    assert watch.num_steps > num_before, "and side by side again"


@pytest.mark.parametrize("name", ["engine", "engine-2"])
def test_a_step_that_raises_wakes_everyone(tiny_llama: Path, watch: Watch, name: str) -> None:
    def fail() -> None:
        if threading.current_thread().name == name and watch.num_steps > 10:
            raise ArithmeticError("a defect")

    watch.at_begin = fail
    with _started(tiny_llama) as thread:
        submission = thread.submit(_requests(60))
        with pytest.raises(EngineFailedError, match="a defect"):
            collect(submission)
        with pytest.raises(EngineFailedError):
            thread.submit(_requests(1))
    assert isinstance(thread.failure, ArithmeticError)


def test_a_step_without_memory_is_repeated_alone(tiny_llama: Path, watch: Watch) -> None:
    def run_out() -> None:
        if watch.num_steps == 10:
            raise OutOfMemoryError("no memory")

    watch.at_begin = run_out
    requests = _requests(60)
    expected = [one.token_ids for one in run(make_engine(tiny_llama, **LIMITS), requests)]
    with _started(tiny_llama) as thread:
        assert [one.token_ids for one in collect(thread.submit(requests))] == expected
        assert thread._loaded_engine().steps_at_once == 1
    assert watch.num_steps <= 11


def test_stop_wakes_what_is_left(tiny_llama: Path, watch: Watch) -> None:
    with _started(tiny_llama) as thread:
        submission = thread.submit([GenerationRequest(index, (5,), greedy(400)) for index in range(ROWS)])
        while watch.num_steps < 20:
            time.sleep(0.001)
        thread.stop(drain_seconds=0.0)
        with pytest.raises(EngineStoppedError):
            collect(submission)
    assert not [one for one in threading.enumerate() if one.name == "engine-2"]


def test_progress_is_that_of_the_slower_thread(tiny_llama: Path, watch: Watch) -> None:
    gate, stuck = threading.Event(), threading.Event()

    def hang() -> None:
        if threading.current_thread().name == "engine-2" and watch.num_steps > 10:
            stuck.set()
            assert gate.wait(WAIT_SECONDS)

    watch.inside = hang
    with _started(tiny_llama) as thread:
        submission = thread.submit(_requests(60))
        assert stuck.wait(WAIT_SECONDS)
        seen = []
        for _ in range(3):
            num_before = watch.num_steps
            while watch.num_steps < num_before + 3:
                time.sleep(0.001)
            seen.append(thread.last_progress_at)
        gate.set()
        (since,) = set(seen)
        assert len(collect(submission)) == 60
        assert thread.last_progress_at > since


@pytest.mark.parametrize(
    ("overrides", "count"),
    [
        ({"num_threads": 1}, 1),
        ({"num_threads": 2}, 2),
        ({"num_threads": 3}, 3),
        ({"num_threads": 4}, 2),
        ({"num_threads": 5}, 1),
        ({"num_threads": 2, "speculates": True}, 1),
        ({"num_threads": 2, "latency_target_seconds": 5.0}, 1),
        ({"num_threads": 2, "batch_policy": BatchPolicy("fixed")}, 1),
    ],
    ids=str,
)
def test_how_many_steps_run_at_once(tiny_llama: Path, overrides: dict[str, Any], count: int) -> None:
    before = torch.get_num_threads()
    try:
        engine = make_engine(tiny_llama, **LIMITS | overrides)
    finally:
        torch.set_num_threads(before)
    assert engine.steps_at_once == (count if engine._runner.is_one_region else 1)


@pytest.mark.parametrize(
    ("cache_bytes", "most", "least"), [(0, ROWS, ROWS_WORTH_READING), (0, 8, 8), (1 << 30, ROWS, 0)]
)
def test_steps_that_read_weights_from_memory_have_more_sequences(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, cache_bytes: int, most: int, least: int
) -> None:
    monkeypatch.setattr(model_runner, "last_cache_bytes", lambda: cache_bytes)
    engine = make_engine(tiny_llama, **LIMITS | {"max_num_sequences": most})
    assert engine._scheduler.limits.least_rows_beside == least
