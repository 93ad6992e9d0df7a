"""A session whose client is stopped, or cut off, in the middle of a transaction."""

from datetime import timedelta

import pytest
from sqlalchemy import text

from tests.fixtures.batches import held, submit
from tests.fixtures.deployment import eventually
from worker.settings import settings
from worker.store.batches import batches
from worker.store.database.session import DATABASE_AWAY, Store
from worker.store.shards import leases


def test_what_it_has_locked_is_free_soon_and_it_can_go_on_later(store: Store) -> None:
    batch_id = submit(store)
    stopped = Store(settings().database_url, has_pooler=settings().has_pooler, idle_seconds=0.2)

    def is_free() -> bool:
        with store.transaction() as session:
            return batches.lock(session, batch_id, skip_locked=True) is not None

    with stopped.transaction() as session:
        batches.lock(session, batch_id)
        eventually(is_free, what="the end of the idle session")
        with pytest.raises(DATABASE_AWAY):
            session.execute(text("SELECT 1"))
        session.rollback()
    with stopped.transaction() as session:
        assert batches.lock(session, batch_id) is not None
    stopped.close()


def test_a_transaction_of_a_worker_has_an_end_even_in_the_middle_of_a_message(database_url: str) -> None:
    """There Postgres does not count it as idle."""
    worker = Store(database_url, has_pooler=settings().has_pooler, transaction_seconds=0.2)
    with worker.transaction() as session:
        with pytest.raises(DATABASE_AWAY):
            session.execute(text("SELECT pg_sleep(50)"))
        session.rollback()
    worker.close()


def test_it_does_not_keep_the_dispatcher_from_other_batches(store: Store) -> None:
    locked, other = submit(store, num_requests=1), submit(store, num_requests=1)
    for shard_id in (1, 2):
        held(store, shard_id, lease=timedelta(seconds=-1))
    with store.transaction() as cut_off:
        batches.lock(cut_off, locked)
        cut_off.execute(text("SELECT FROM shards WHERE id = 1 FOR UPDATE"))
        with store.transaction() as session:
            cut = leases.return_expired(session, 1, locked, max_attempts=5)
            returned = leases.return_expired(session, 2, other, max_attempts=5)
    assert (cut, returned) == (False, True)
    with store.transaction() as session:
        assert leases.return_expired(session, 1, locked, max_attempts=5)
