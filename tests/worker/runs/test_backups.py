"""An idle worker runs the last requests of a slow one's shard too: the first result of each counts."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import cast

import psycopg
import pytest
from psycopg.rows import TupleRow
from sqlalchemy import text

from tests.fixtures.batches import LEASE, held, run_to_the_end, submit
from tests.fixtures.deployment import eventually
from tests.fixtures.fake_engine import FakeEngine
from worker.contract.messages import GPU_QUEUE
from worker.contract.states import BatchStatus
from worker.engine.engine_thread import EngineThread
from worker.preflight import without_driver
from worker.runs.lease_keeper import LeaseKeeper
from worker.runs.run import Ending
from worker.runs.shard_runner import ShardRunner
from worker.runs.shard_saver import ShardSaver
from worker.runs.tail import Pace, Tail, ends_sooner
from worker.settings import settings
from worker.store.batches import batch_views, batches
from worker.store.database import presence
from worker.store.database.session import Store
from worker.store.requests import result_views
from worker.store.shards import control, leases
from worker.store.shards.backups import Straggler
from worker.store.watching import workers
from worker.values.outcomes import Outcome
from worker.values.step_costs import STEP_COSTS, StepCosts

FAST = StepCosts(step=0.02, row=0.0, token=0.001, context=0.0, max_rows=64)
IDLE = Pace(FAST, 64, 0)
LATE = Straggler(
    1,
    1,
    num_left=2,
    prompt_tokens=200,
    running_tokens=1000,
    stored_tokens=0,
    max_tokens=8000,
    output_tokens=100.0,
)


def test_a_backup_must_end_well_before_the_holder() -> None:
    # 1,000 more tokens are expected of two requests: 20 s here, with what the holder has already.
    assert ends_sooner(IDLE, LATE, tokens_per_second=20)
    assert not ends_sooner(IDLE, LATE, tokens_per_second=50)
    assert ends_sooner(IDLE, LATE, tokens_per_second=0), "it stands still"
    begun = replace(LATE, stored_tokens=900)
    assert ends_sooner(IDLE, begun, tokens_per_second=50), "it begins with what is stored"
    assert not ends_sooner(IDLE, replace(LATE, max_tokens=1010), tokens_per_second=20), "it is at its limit"
    assert not ends_sooner(IDLE, replace(LATE, max_tokens=1000), tokens_per_second=0)
    assert not ends_sooner(replace(IDLE, costs=replace(FAST, token=0.5)), LATE, tokens_per_second=20)
    fresh = replace(LATE, running_tokens=10, output_tokens=1000.0)
    assert ends_sooner(IDLE, fresh, tokens_per_second=50), "the mean is far"
    assert not ends_sooner(IDLE, replace(fresh, output_tokens=None), tokens_per_second=50)


class Worker:
    """A runner on a fake engine."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.engine = FakeEngine()
        self.draining = threading.Event()
        engine = cast("EngineThread", self.engine)
        self.runner = ShardRunner(
            store=store,
            saver=ShardSaver(store),
            engine=engine,
            keeper=LeaseKeeper(store, engine, worker=name, lease=LEASE),
            save_seconds=0.05,
            drain_seconds=60,
            draining=self.draining,
            tail=Tail(store, name, None),
        )
        with store.transaction() as session:
            info = {STEP_COSTS: asdict(FAST), "max_num_sequences": 64}
            workers.seen(session, name=name, queue=GPU_QUEUE, slots=4, info=info)


class Fleet:
    """A slow worker that runs the only shard of a batch, and an idle one."""

    def __init__(self, store: Store, pool: ThreadPoolExecutor) -> None:
        self.store = store
        self.slow, self.idle = Worker(store, "gpu@slow"), Worker(store, "gpu@idle")
        self._pool = pool

    def start(self, num_requests: int = 2) -> Future[Ending]:
        self.batch_id = submit(self.store, num_requests=num_requests, shard_size=num_requests)
        slow = self._pool.submit(self.slow.runner.run_this, 1)
        assert self.slow.engine.submitted.wait(60)
        return slow

    def back_up(self) -> Future[Ending]:
        assert self.idle.runner.back_up() is Ending.NOTHING_TO_DO, "nothing is known of its progress yet"
        backup = self._pool.submit(self.idle.runner.back_up)
        assert self.idle.engine.submitted.wait(60)
        return backup

    def outputs(self) -> dict[int, str | None]:
        with self.store.transaction() as session:
            found = result_views.page(session, self.batch_id, after=0, limit=10)
        assert [one.sequence for one in found] == list(range(1, len(found) + 1))
        return {one.position: one.output for one in found}

    def status(self) -> BatchStatus:
        with self.store.transaction() as session:
            found = batch_views.get(session, self.batch_id)
        assert found is not None
        return found.status


@pytest.fixture
def fleet(store: Store) -> Iterator[Fleet]:
    url = without_driver(settings().direct_url)
    with psycopg.connect(url, autocommit=True) as connection, ThreadPoolExecutor(2) as pool:
        fleet = Fleet(store, pool)
        announce(connection)
        yield fleet
        for one in (fleet.slow, fleet.idle):  # a run that a failed test has left must not keep the pool
            one.runner.keeper._stopping.set()
            one.draining.set()
            one.engine.cancel(one.engine.work, ()) if one.engine.submitted.is_set() else None


def announce(connection: "psycopg.Connection[TupleRow]") -> None:
    for name in ("gpu@slow", "gpu@idle"):
        presence.announce(connection, name)


def test_the_backup_is_first(fleet: Fleet) -> None:
    slow = fleet.start()
    fleet.slow.engine.finish(0, text="slow")
    eventually(lambda: len(fleet.outputs()) == 1)
    backup = fleet.back_up()
    assert [request.prompt for request in fleet.idle.engine.requests] == ["prompt 1"]
    fleet.idle.engine.finish(0, text="fast")
    assert backup.result(60) is Ending.FINISHED
    assert slow.result(60) is Ending.FINISHED
    assert fleet.slow.engine.cancelled.is_set()
    assert fleet.outputs() == {0: "slow", 1: "fast"}
    assert fleet.status() is BatchStatus.COMPLETED


def test_the_holder_is_first(fleet: Fleet) -> None:
    slow = fleet.start()
    backup = fleet.back_up()
    fleet.slow.engine.finish(0, 1, text="slow")
    assert slow.result(60) is Ending.FINISHED
    assert backup.result(60) is Ending.FINISHED
    assert fleet.idle.engine.cancelled.is_set()
    assert fleet.outputs() == {0: "slow", 1: "slow"}


def test_each_is_told_at_once_what_the_other_has_done(fleet: Fleet) -> None:
    slow = fleet.start()
    backup = fleet.back_up()
    fleet.slow.engine.finish(0, text="slow")
    eventually(lambda: fleet.idle.engine.open == {(2, 0)}, what="the end of the first request in the backup")
    fleet.idle.engine.finish(1, text="fast")
    assert {slow.result(60), backup.result(60)} == {Ending.FINISHED}
    assert fleet.outputs() == {0: "slow", 1: "fast"}
    with fleet.store.transaction() as session:
        counted = session.execute(text("SELECT output_tokens, num_cancelled FROM batches")).one()
    assert tuple(counted) == (6, 0)


def test_both_end_at_the_same_time(fleet: Fleet) -> None:
    slow = fleet.start(4)
    backup = fleet.back_up()
    begin = threading.Barrier(2)

    def finish(worker: Worker, said: str) -> None:
        begin.wait(60)
        worker.engine.finish(0, 1, 2, 3, text=said)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(finish, (fleet.slow, fleet.idle), ("slow", "fast")))
    assert {slow.result(60), backup.result(60)} == {Ending.FINISHED}
    assert set(fleet.outputs()) == {0, 1, 2, 3}
    assert fleet.status() is BatchStatus.COMPLETED
    with fleet.store.transaction() as session:
        assert session.scalar(text("SELECT output_tokens FROM batches")) == 12


def test_the_backup_dies(fleet: Fleet) -> None:
    slow = fleet.start()
    backup = fleet.back_up()
    fleet.idle.engine.work.fail(RuntimeError("the engine failed"))  # type: ignore[arg-type]
    assert backup.result(60) is Ending.LOST
    assert not slow.done()
    fleet.slow.engine.finish(0, 1)
    assert slow.result(60) is Ending.FINISHED
    assert fleet.status() is BatchStatus.COMPLETED


def return_expired(store: Store, batch_id: str) -> bool:
    with store.transaction() as session:
        return leases.return_expired(session, 1, batch_id, max_attempts=5)


def test_the_holder_dies(fleet: Fleet, store: Store) -> None:
    fleet.batch_id = submit(store, num_requests=2, shard_size=2)
    held(store, 1, worker="gpu@slow")  # and it is never heard of again
    backup = fleet.back_up()
    fleet.idle.engine.finish(0, text="fast")
    eventually(lambda: len(fleet.outputs()) == 1)
    with store.transaction() as session:
        session.execute(text("UPDATE shards SET lease_expires_at = now()"))
    eventually(lambda: return_expired(store, fleet.batch_id), what="a moment without a save of the backup")
    again = held(store, 1, worker="gpu@other")
    assert [request.prompts for request in again.requests] == [("prompt 1",)]
    assert backup.result(60) is Ending.LOST
    run_to_the_end(store, again)
    assert fleet.outputs() == {0: "fast", 1: "out prompt 1"}
    assert fleet.status() is BatchStatus.COMPLETED


def test_a_draining_worker_drops_its_backup(fleet: Fleet) -> None:
    slow = fleet.start()
    backup = fleet.back_up()
    fleet.idle.draining.set()
    assert backup.result(60) is Ending.HANDED_BACK
    with fleet.store.transaction() as session:
        assert tuple(session.execute(text("SELECT state, worker FROM shards")).one()) == (
            "running",
            "gpu@slow",
        )
    fleet.slow.engine.finish(0, 1)
    assert slow.result(60) is Ending.FINISHED


def test_a_cancel_ends_both(fleet: Fleet, store: Store) -> None:
    slow = fleet.start()
    backup = fleet.back_up()
    with store.transaction() as session:
        batches.cancel(session, fleet.batch_id)
    assert slow.result(60) is Ending.STOPPED
    # FINISHED: it learned first that the holder had saved both results.
    assert backup.result(60) in {Ending.STOPPED, Ending.LOST, Ending.FINISHED}
    assert not fleet.idle.engine.open
    assert set(fleet.outputs()) == {0, 1}
    assert fleet.status() is BatchStatus.CANCELLED


def test_a_request_that_is_cancelled_or_fails_is_the_holders(fleet: Fleet, store: Store) -> None:
    slow = fleet.start()
    backup = fleet.back_up()
    with store.transaction() as session:
        control.cancel_request(session, fleet.batch_id, 0)
    fleet.idle.engine.finish(1, error="it fails here")
    assert backup.result(60) is Ending.FINISHED
    eventually(lambda: set(fleet.outputs()) == {0})
    fleet.slow.engine.finish(1, text="slow")
    assert slow.result(60) is Ending.FINISHED
    with store.transaction() as session:
        found = result_views.page(session, fleet.batch_id, after=0, limit=10)
    assert {one.position: one.outcome for one in found} == {0: Outcome.CANCELLED, 1: Outcome.COMPLETED}


def running_tokens(store: Store) -> int:
    """Return what the first shard's holder has last saved of its progress."""
    with store.transaction() as session:
        return int(session.execute(text("SELECT running_tokens FROM shards WHERE id = 1")).scalar_one())


def test_a_busy_worker_and_one_with_other_work_back_nothing_up(fleet: Fleet, store: Store) -> None:
    slow = fleet.start()
    tail = fleet.idle.runner.tail
    assert tail is not None
    assert tail.to_back_up() is None
    assert tail.to_back_up() is not None
    submit(store, num_requests=1, shard_size=1)
    assert tail.to_back_up() is None, "another shard is ready"
    run_to_the_end(store, held(store, 2))
    assert tail.to_back_up() is None
    fleet.slow.engine.work.num_output_tokens = 19  # of at most 20
    eventually(lambda: running_tokens(store) == 19)
    assert tail.to_back_up() is None, "it makes progress"
    assert tail.to_back_up() is not None, "and then none"
    assert fleet.slow.runner.back_up() is Ending.NOTHING_TO_DO
    fleet.slow.engine.finish(0, 1)
    assert slow.result(60) is Ending.FINISHED
