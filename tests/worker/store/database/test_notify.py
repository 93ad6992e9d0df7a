import time

from tests.fixtures.batches import submit
from worker.settings import settings
from worker.store.batches import batches
from worker.store.database.notify import WORKERS, notices_of_worker, wake_ups
from worker.store.database.session import Store


def test_a_submission_wakes_the_dispatcher_and_many_wake_it_once(store: Store) -> None:
    turns = wake_ups(settings().direct_url, every_seconds=20)
    next(turns)
    for _ in range(5):
        submit(store)
    started = time.monotonic()
    next(turns)
    assert time.monotonic() - started < 10
    turns.close()


def test_without_notifications_it_looks_round_all_the_same() -> None:
    turns = wake_ups(settings().direct_url, every_seconds=0.1)
    for _ in range(3):
        next(turns)
    turns.close()


def test_workers_hear_of_a_cancel_once_it_is_committed(store: Store) -> None:
    heard = notices_of_worker(settings().direct_url, worker="gpu@here", every_seconds=20)
    assert next(heard) is None, "listening has begun"
    batch_id = submit(store)
    with store.transaction() as session:
        batches.cancel(session, batch_id)
    notice = next(heard)
    assert notice is not None
    assert (notice.channel, notice.payload) == (WORKERS, batch_id)
    heard.close()
