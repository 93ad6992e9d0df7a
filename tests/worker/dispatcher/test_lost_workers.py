"""A worker that dies is missed at once; one that lost no more than a connection keeps what it holds."""

import threading
from datetime import timedelta
from typing import cast

import pytest
from sqlalchemy import text

from tests.fixtures.batches import held, submit
from tests.fixtures.deployment import eventually
from tests.fixtures.fake_engine import FakeEngine, keeper
from worker.dispatcher.lost_workers import LostWorkers
from worker.runs.shard_runner import ShardRunner
from worker.settings import settings
from worker.store.database import presence
from worker.store.database.session import Store
from worker.tasks.listening import listen

LONG = timedelta(hours=1)
SOON = timedelta(seconds=0.2)


class Worker:
    """The connection of a worker that is there."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._stopping = threading.Event()
        before = seen(store)
        runner = cast("ShardRunner", object())
        self._thread = listen(settings().direct_url, (runner,), self._stopping, worker=name)
        eventually(lambda: seen(store) > before, what="a worker that is seen")

    def die(self) -> None:
        """Let go of the connection, as a process does that ends; wait until Postgres has noticed."""
        before = seen(self._store)
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_running
        eventually(lambda: seen(self._store) < before, what="a worker that is gone")


def seen(store: Store) -> frozenset[int]:
    with store.transaction() as session:
        return presence.present(session)


def states(store: Store) -> list[str]:
    with store.transaction() as session:
        return list(session.scalars(text("SELECT state FROM shards ORDER BY id")))


def test_what_a_dead_worker_held_is_returned_long_before_its_lease_ends(store: Store) -> None:
    submit(store)
    dead, alive = Worker(store, "gpu@dead"), Worker(store, "gpu@alive")
    held(store, 1, worker="gpu@dead", lease=LONG)
    held(store, 2, worker="gpu@alive", lease=LONG)
    lost = LostWorkers(store, max_attempts=5, grace=SOON)
    lost.sweep(limit=10)
    dead.die()

    def returned() -> bool:
        lost.sweep(limit=10)
        return states(store) == ["ready", "running"]

    eventually(returned)
    alive.die()


def test_a_worker_that_lost_a_connection_renews_and_keeps_its_shards(store: Store) -> None:
    submit(store, num_requests=1)
    name = "gpu@test"
    worker = Worker(store, name)
    kept = keeper(store, FakeEngine(), timedelta(seconds=30))
    with kept.hold(1):
        lost = LostWorkers(store, max_attempts=5, grace=timedelta(seconds=20))
        lost.sweep(limit=10)
        worker.die()
        lost.sweep(limit=10)
        left = text("SELECT lease_expires_at - now() < interval '20.1 seconds' FROM shards")
        with store.transaction() as session:
            assert session.scalar(left), "the lease was not cut"
        kept._renew()
        lost.sweep(limit=10)
        with store.transaction() as session:
            assert not session.scalar(left)
    assert states(store) == ["running"]


@pytest.mark.parametrize(("grace", "expected"), [(timedelta(hours=1), "running"), (timedelta(0), "ready")])
def test_nothing_is_held_against_workers_while_postgres_was_away(
    store: Store, grace: timedelta, expected: str
) -> None:
    submit(store, num_requests=1)
    worker = Worker(store, "gpu@here")
    held(store, 1, worker="gpu@here", lease=timedelta(seconds=-1))
    lost = LostWorkers(store, max_attempts=5, grace=grace)
    lost.connected()
    lost.sweep(limit=10)
    assert states(store) == [expected]
    worker.die()


def test_a_worker_that_was_never_seen_is_not_missed(store: Store) -> None:
    submit(store, num_requests=1)
    held(store, 1, lease=LONG)
    lost = LostWorkers(store, max_attempts=5, grace=timedelta(0))
    lost.sweep(limit=10)
    lost.sweep(limit=10)
    assert states(store) == ["running"]
