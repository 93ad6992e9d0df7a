"""While another tenant holds every slot, a shard need not wait for one."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import cast

import pytest

from tests.fixtures.batches import claim, submit
from tests.fixtures.deployment import eventually
from tests.fixtures.fake_engine import FakeEngines, keeper
from worker.contract.states import BatchStatus
from worker.engine.engine_thread import EngineThread
from worker.engine.requests.share import Share
from worker.runs.run import Ending
from worker.runs.shard_runner import ShardRunner
from worker.runs.shard_saver import ShardSaver
from worker.store.batches import batch_views
from worker.store.database.session import Store
from worker.store.shards import leases, shards, tickets
from worker.store.tenants import tenants
from worker.tasks.extra_slots import ExtraSlots


@pytest.fixture
def engine() -> FakeEngines:
    return FakeEngines()


@pytest.fixture
def runner(store: Store, engine: FakeEngines) -> Iterator[ShardRunner]:
    made = ShardRunner(
        store=store,
        saver=ShardSaver(store),
        engine=cast("EngineThread", engine),
        keeper=keeper(store, engine),
        save_seconds=0.05,
        drain_seconds=0.0,
        draining=threading.Event(),
    )
    extra = ExtraSlots(made, store, slots=2)
    extra.start()
    yield made
    made.draining.set()
    extra.stop()


def issue(store: Store) -> None:
    with store.transaction() as session:
        tickets.issue_shards(session, window=20, reissue_after=timedelta(seconds=60))


def test_a_small_tenant_does_not_wait_for_a_slot(
    store: Store, engine: FakeEngines, runner: ShardRunner
) -> None:
    submit(store.of_tenant("large"), num_requests=8, shard_size=2)
    issue(store)
    with ThreadPoolExecutor(2) as slots:
        try:
            running = [slots.submit(runner.run, shard_id) for shard_id in (1, 2)]
            eventually(lambda: len(engine.shards) == 2)
            with store.transaction() as session:
                tenants.create(session, "small")
                tenants.change(session, "small", {"weight": 3})
            batch_id = submit(store.of_tenant("small"), num_requests=2, shard_size=2)
            issue(store)
            eventually(lambda: len(engine.shards) == 3, what="a third shard")
            assert [request.share for request in engine.shards[2].requests] == [
                Share("small", 3, 0, batch_id)
            ] * 2
            assert engine.shards[0].requests[0].share.group == "large"
            engine.shards[2].finish(0, 1)

            def is_over() -> bool:
                with store.of_tenant("small").transaction() as session:
                    batch = batch_views.get(session, batch_id)
                return batch is not None and batch.status is BatchStatus.COMPLETED

            eventually(is_over, what="the end of the small batch")
            assert len(engine.shards) == 3, "the large tenant gets no more than its own"
        finally:  # or the runs would keep the pool from ending
            runner.draining.set()
        assert [one.result(30) for one in running] == [Ending.HANDED_BACK] * 2


@pytest.mark.parametrize("priority", [0, 5])
def test_a_tenants_own_work_does_not_wait_for_its_slots(
    store: Store, engine: FakeEngines, runner: ShardRunner, priority: int
) -> None:
    submit(store, num_requests=8, shard_size=2)
    issue(store)
    with ThreadPoolExecutor(2) as slots:
        try:
            running = [slots.submit(runner.run, shard_id) for shard_id in (1, 2)]
            eventually(lambda: len(engine.shards) == 2)
            batch_id = submit(store, num_requests=4, shard_size=2, priority=priority)
            issue(store)
            eventually(lambda: len(engine.shards) == 3, what="a third shard")
            [share] = {request.share for request in engine.shards[2].requests}
            assert share == Share("default", 1, priority, batch_id)
            runner.batch_changed(batch_id)
            engine.shards[2].finish(0, 1)
            if priority:
                eventually(lambda: len(engine.shards) == 4, what="the other half of it")
        finally:
            runner.draining.set()
        assert [one.result(30) for one in running] == [Ending.HANDED_BACK] * 2


def is_returned(store: Store, held: shards.Claim) -> bool:
    """Return a shard whose lease has expired, as a sweep does; say whether it was possible."""
    with store.transaction() as session:
        return leases.return_expired(session, held.shard_id, held.batch_id, max_attempts=9)


def test_what_a_dead_worker_has_left_finds_a_slot_beside_full_extra_ones(
    store: Store, engine: FakeEngines, runner: ShardRunner
) -> None:
    submit(store.of_tenant("large"), num_requests=4, shard_size=2)
    issue(store)
    with ThreadPoolExecutor(2) as slots:
        try:
            running = [slots.submit(runner.run, shard_id) for shard_id in (1, 2)]
            eventually(lambda: len(engine.shards) == 2)
            for name in ("small", "smaller"):
                submit(store.of_tenant(name), num_requests=2, shard_size=2)
                issue(store)
            eventually(lambda: len(engine.shards) == 4, what="every extra slot taken")
            submit(store.of_tenant("large"), num_requests=12, shard_size=2)
            for shard_id in range(5, 11):  # a worker's own slots, and its extra ones
                held = claim(store, shard_id, lease=timedelta(seconds=-1))
                assert held is not None
                # Not while the batch is locked, as it is while the shard before is claimed.
                eventually(lambda one=held: is_returned(store, one), what="a shard that is ready again")
            eventually(lambda: len(engine.shards) == 10, what="slots for all that was begun")
        finally:
            runner.draining.set()
        assert [one.result(30) for one in running] == [Ending.HANDED_BACK] * 2
