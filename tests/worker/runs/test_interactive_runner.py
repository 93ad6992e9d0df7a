import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest

from tests.fixtures.batches import submit
from tests.fixtures.deployment import eventually
from tests.fixtures.fake_engine import FakeEngine, keeper
from worker.contract.feed import Message, Saved
from worker.contract.states import BatchStatus, Lane
from worker.engine.engine_thread import EngineThread
from worker.runs.interactive_runner import InteractiveRunner
from worker.runs.response_cache import ResponseCache
from worker.settings import settings
from worker.store.batches import batch_views, batches
from worker.store.batches.batch_views import BatchView
from worker.store.batches.batches import NewBatch
from worker.store.database.session import Store
from worker.store.requests import result_views
from worker.store.requests.requests import NewRequest
from worker.tasks.interactive import InteractiveLane
from worker.tasks.listening import listen
from worker.values.caching import CacheMode, Source
from worker.values.delta import Delta
from worker.values.outcomes import FinishReason
from worker.values.sampling import SamplingParams


class Bench:
    """A lane on a fake engine, and what it told."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.engine = FakeEngine()
        self.draining = threading.Event()
        self.told: list[Message] = []
        self.runner = InteractiveRunner(
            store=store,
            engine=cast("EngineThread", self.engine),
            feed=self,
            keeper=keeper(store, self.engine),
            save_seconds=0.05,
            drain_seconds=0.1,
            draining=self.draining,
        )

    def tell(self, _: str, message: Message) -> None:
        self.told.append(message)

    def submit(self) -> str:
        return submit(self.store, num_requests=1, shard_size=1, lane=Lane.INTERACTIVE)

    def view(self, batch_id: str) -> BatchView:
        with self.store.transaction() as session:
            found = batch_views.get(session, batch_id)
        assert found is not None
        return found


@pytest.fixture
def bench(store: Store) -> Bench:
    return Bench(store)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_an_interactive_shard_is_urgent_told_and_saved(bench: Bench, pool: ThreadPoolExecutor) -> None:
    batch_id = bench.submit()
    running: Future[None] = pool.submit(bench.runner.run, 1)
    assert bench.engine.submitted.wait(60)
    (request,) = bench.engine.requests
    assert (request.priority, request.job) == (1, None)
    assert bench.engine.work.on_delta is not None
    bench.engine.work.on_delta(Delta(request.id, 0, 0, "a\x00", 1))
    bench.engine.work.on_delta(Delta(request.id, 0, 2, "", 1, None, FinishReason.STOP))
    bench.engine.finish(0)
    running.result(60)
    assert bench.told == [
        Delta(0, 0, 0, "a\ufffd", 1),
        Delta(0, 0, 2, "", 1, None, FinishReason.STOP),
        Saved(),
    ]
    assert bench.view(batch_id).status is BatchStatus.COMPLETED


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_answer_that_is_known_is_not_run(store: Store, is_streamed: bool) -> None:
    new = NewBatch(
        SamplingParams(max_tokens=10, temperature=0),
        [NewRequest(prompt="cat", max_tokens=10, num_prompt_tokens=3, is_streamed=is_streamed)],
        cache=CacheMode.EXACT,
        lane=Lane.INTERACTIVE,
    )
    bench = Bench(store)
    bench.runner = replace(bench.runner, cache=ResponseCache(store, "demo", timedelta(hours=1), lambda _: []))
    for shard_id in (1, 2):
        with store.transaction() as session:
            batch_id = batches.submit(session, new, shard_size=1)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(bench.runner.run, shard_id)
            assert bench.engine.submitted.wait(60)
            if shard_id == 1:
                assert len(bench.engine.requests) == 1
                bench.engine.finish(0)
            running.result(60)
        bench.engine = FakeEngine()
        bench.runner = replace(bench.runner, engine=cast("EngineThread", bench.engine))
    assert bench.view(batch_id).num_cache_hits == 1
    with store.transaction() as session:
        (answer,) = result_views.page(session, batch_id, after=0, limit=9)
    assert answer.source is Source.EXACT_CACHE


def test_what_is_out_of_time_fails_with_its_output_so_far(bench: Bench, pool: ThreadPoolExecutor) -> None:
    asked = NewRequest(prompt="prompt", max_tokens=10, num_prompt_tokens=3, timeout_seconds=0.2)
    new = NewBatch(SamplingParams(max_tokens=10), [asked], lane=Lane.INTERACTIVE)
    with bench.store.transaction() as session:
        batch_id = batches.submit(session, new, shard_size=1)
    bench.engine.partial = {(1, 0): (5, 6)}
    pool.submit(bench.runner.run, 1).result(60)
    assert (bench.view(batch_id).status, bench.view(batch_id).num_failed) == (BatchStatus.COMPLETED, 1)
    with bench.store.transaction() as session:
        (late,) = result_views.page(session, batch_id, after=0, limit=10)
    assert (late.error_code, late.output, late.num_output_tokens) == ("timeout", "text of 2", 2)
    assert bench.told == [Saved()]


def test_nobody_waits_for_a_cancelled_one(bench: Bench, pool: ThreadPoolExecutor) -> None:
    batch_id = bench.submit()
    running = pool.submit(bench.runner.run, 1)
    assert bench.engine.submitted.wait(60)
    with bench.store.transaction() as session:
        batches.cancel(session, batch_id)
    bench.runner.batch_changed(batch_id)
    running.result(60)
    assert bench.engine.cancelled.is_set()
    assert bench.view(batch_id).status is BatchStatus.CANCELLED


def test_what_is_handed_back_is_told_no_end(bench: Bench, pool: ThreadPoolExecutor) -> None:
    """Whoever reads the stream would take what this worker had for the whole."""
    bench.submit()
    running = pool.submit(bench.runner.run, 1)
    assert bench.engine.submitted.wait(60)
    (request,) = bench.engine.requests
    assert bench.engine.work.on_delta is not None
    bench.engine.work.on_delta(Delta(request.id, 0, 0, "some", 1))
    bench.engine.work.on_delta(Delta(request.id, 0, 4, "", 0, None, FinishReason.CANCELLED))
    bench.draining.set()
    running.result(60)
    assert bench.told == [Delta(0, 0, 0, "some", 1)]


def test_draining_hands_it_to_another_worker(bench: Bench, pool: ThreadPoolExecutor) -> None:
    batch_id = bench.submit()
    running = pool.submit(bench.runner.run, 1)
    assert bench.engine.submitted.wait(60)
    bench.draining.set()
    running.result(60)
    bench.draining.clear()
    bench.engine.submitted.clear()
    again = pool.submit(bench.runner.run, 1)
    bench.engine.finish(0)
    again.result(60)
    assert bench.view(batch_id).num_completed == 1


def test_the_lane_finds_what_is_ready_and_what_comes(bench: Bench) -> None:
    before = bench.submit()
    lane = InteractiveLane(bench.runner, bench.store, slots=2, sweep_seconds=30)
    lane.start()
    listener = listen(
        settings().direct_url, (bench.runner,), bench.draining, worker="gpu@test", interactive=lane.take
    )
    bench.engine.finish(0)
    eventually(lambda: bench.view(before).status is BatchStatus.COMPLETED)
    bench.engine.submitted.clear()
    after = bench.submit()  # told by a notification: the lane looks round every 30 s only
    bench.engine.finish(0)
    eventually(lambda: bench.view(after).status is BatchStatus.COMPLETED, seconds=20)
    bench.draining.set()
    lane.stop()
    listener.join(60)
    assert not listener.is_running
