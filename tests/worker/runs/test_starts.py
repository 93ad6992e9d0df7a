import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import cast

import pytest

from tests.fixtures.batches import submit
from tests.fixtures.deployment import eventually
from tests.fixtures.fake_engine import FakeEngine, FakeEngines, keeper
from worker.engine.engine_thread import EngineThread
from worker.engine.requests.generation import Completion, GenerationRequest
from worker.engine.submission import Submission
from worker.runs import shard_runner
from worker.runs.run import Ending
from worker.runs.shard_runner import ShardRunner
from worker.runs.shard_saver import ShardSaver
from worker.store.database.session import Store
from worker.store.shards import tickets
from worker.values.delta import Delta


class SlowEngines(FakeEngines):
    """Takes requests when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.num_asked = 0
        self.may_take = threading.Semaphore(0)

    def has_asked(self, number: int) -> bool:
        return self.num_asked == number

    def submit(
        self,
        requests: Sequence[GenerationRequest],
        on_delta: Callable[[Delta], None] | None = None,
    ) -> Submission[Completion]:
        self.num_asked += 1
        assert self.may_take.acquire(timeout=60)
        return super().submit(requests, on_delta)


@pytest.fixture
def engine() -> SlowEngines:
    return SlowEngines()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as pool:
        yield pool


@pytest.fixture
def runner(store: Store, engine: SlowEngines) -> ShardRunner:
    submit(store, num_requests=6, shard_size=2)
    with store.transaction() as session:
        tickets.issue_shards(session, window=3, reissue_after=timedelta(minutes=1))
    return ShardRunner(
        store=store,
        saver=ShardSaver(store),
        engine=cast("EngineThread", engine),
        keeper=keeper(store, engine),
        save_seconds=0.05,
        drain_seconds=0.2,
        draining=threading.Event(),
    )


def finish(shards: Sequence[FakeEngine]) -> None:
    for shard in shards:
        shard.finish(0, 1)


def test_runs_start_one_after_the_other(
    runner: ShardRunner,
    engine: SlowEngines,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shard_runner, "START_SECONDS", 60)
    endings = [pool.submit(runner.run, 1) for _ in range(3)]
    for num_asked in (1, 2, 3):
        eventually(partial(engine.has_asked, num_asked))
        time.sleep(0.2)
        assert engine.num_asked == num_asked
        engine.may_take.release()
    eventually(lambda: len(engine.shards) == 3)
    finish(engine.shards)
    assert [ending.result(60) for ending in endings] == [Ending.FINISHED] * 3


def test_a_slow_start_does_not_hold_up_the_others(
    runner: ShardRunner, engine: SlowEngines, pool: ThreadPoolExecutor
) -> None:
    endings = [pool.submit(runner.run, 1) for _ in range(3)]
    eventually(lambda: engine.num_asked == 3)
    engine.may_take.release(3)
    eventually(lambda: len(engine.shards) == 3)
    finish(engine.shards)
    assert [ending.result(60) for ending in endings] == [Ending.FINISHED] * 3


def test_a_run_that_finds_nothing_lets_the_next_one_start(
    runner: ShardRunner,
    engine: SlowEngines,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shard_runner, "START_SECONDS", 60)
    runner.draining.set()
    endings = [pool.submit(runner.run, 1) for _ in range(3)]
    assert [ending.result(20) for ending in endings] == [Ending.NOTHING_TO_DO] * 3
    assert engine.num_asked == 0
