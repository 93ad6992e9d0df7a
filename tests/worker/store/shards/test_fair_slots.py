"""Which shard may have a slot over the worker's own."""

from datetime import timedelta

import pytest
from sqlalchemy import text

from tests.fixtures.batches import held, submit
from worker.contract.models import Model
from worker.store.database.session import Store
from worker.store.shards import fair_slots, reassigning, tickets

WORKER = "gpu@here"
SLOTS = 6


def issue(store: Store) -> None:
    with store.transaction() as session:
        tickets.issue_shards(session, window=20, reissue_after=timedelta(seconds=60))


def next_shard(store: Store, *, worker: str = WORKER, slots: int = SLOTS) -> int | None:
    with store.transaction() as session:
        return fair_slots.next_shard(session, worker=worker, slots=slots)


@pytest.fixture
def busy(store: Store) -> Store:
    """A store whose shards 1 to 6 run here, and of whose tenant four more have tickets."""
    submit(store.of_tenant("large"), num_requests=10, shard_size=1)
    issue(store)
    for shard_id in range(1, SLOTS + 1):
        held(store, shard_id, worker=WORKER)
    return store


def test_a_tenant_alone_has_its_slots_and_no_more(busy: Store) -> None:
    assert next_shard(busy) is None


def test_another_gets_half_of_them(busy: Store) -> None:
    submit(busy.of_tenant("small"), num_requests=6, shard_size=1)
    assert next_shard(busy) is None, "no ticket, no place"
    issue(busy)
    for shard_id in (11, 12, 13):
        assert next_shard(busy) == shard_id
        held(busy, shard_id, worker=WORKER)
    assert next_shard(busy) is None


def test_each_gets_one_however_many_there_are(busy: Store) -> None:
    for number in range(SLOTS + 4):
        submit(busy.of_tenant(f"small{number}"), num_requests=2, shard_size=1)
    issue(busy)
    given: list[int] = []
    while (found := next_shard(busy)) is not None:
        given.append(held(busy, found, worker=WORKER).shard_id)
    assert len(given) == SLOTS + 4


def test_slots_are_each_workers_own(busy: Store) -> None:
    assert next_shard(busy, worker="gpu@there") == 7


@pytest.mark.parametrize("change", ["UPDATE batches SET paused_at = now()", "UPDATE shards SET is_suspect"])
def test_what_must_not_run_is_left_out(busy: Store, change: str) -> None:
    submit(busy.of_tenant("small"), num_requests=1, shard_size=1)
    issue(busy)
    assert next_shard(busy) is not None
    with busy.transaction() as session:
        session.execute(text(change.replace("is_suspect", "is_suspect = true")))
    assert next_shard(busy) is None


def test_what_was_begun_by_a_worker_that_died_waits_for_no_slot(busy: Store) -> None:
    def begun(limit: int = 10) -> list[int]:
        with busy.transaction() as session:
            return fair_slots.begun(session, limit=limit)

    assert begun() == []
    with busy.transaction() as session:
        session.execute(text("UPDATE shards SET state = 'ready', ticketed_at = NULL WHERE id IN (2, 4)"))
    assert (begun(1), begun()) == ([2], [2, 4])
    held(busy, 2, worker=WORKER)
    assert begun() == [4]
    with busy.transaction() as session:
        session.execute(text("UPDATE shards SET is_suspect = true WHERE id = 4"))
    assert begun() == [], "a suspect runs alone"


def next_of_own(store: Store) -> int | None:
    with store.transaction() as session:
        return fair_slots.next_of_own(session, worker=WORKER, slots=SLOTS)


def test_a_higher_priority_of_the_same_tenant_gets_one(busy: Store) -> None:
    assert next_of_own(busy) is None, "more of what runs"
    submit(busy.of_tenant("large"), num_requests=2, shard_size=1, priority=-1)
    submit(busy.of_tenant("large"), num_requests=2, shard_size=1, priority=5)
    submit(busy.of_tenant("other"), num_requests=1, shard_size=1, priority=9)
    issue(busy)
    for shard_id in (13, 14):
        assert next_of_own(busy) == shard_id
        held(busy, shard_id, worker=WORKER)
    assert next_of_own(busy) is None


def test_a_batch_that_holds_none_gets_one(busy: Store) -> None:
    submit(busy.of_tenant("large"), num_requests=3, shard_size=1)
    submit(busy.of_tenant("large"), num_requests=1, shard_size=1)
    issue(busy)
    assert next_of_own(busy) == 11
    held(busy, 11, worker=WORKER)
    assert next_of_own(busy) == 14, "the other one holds one now"
    held(busy, 14, worker=WORKER)
    assert next_of_own(busy) is None


def test_what_was_never_begun_is_not_begun_by_another_model(store: Store) -> None:
    """Begun shards take extra slots, however many others wait."""
    batch_id = submit(store, num_requests=3, shard_size=1)
    held(store, 1)
    with store.transaction() as session:
        reassigning.lock(session, batch_id)
        reassigning.rebind(session, batch_id, Model("other", "f2", ""))
        assert fair_slots.begun(session, limit=10, model="f2") == [1]
