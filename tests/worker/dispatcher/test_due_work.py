"""Each kind of due row is found, and a sweep works on it until it is not due any more."""

from collections.abc import Callable

import pytest
from sqlalchemy import text

from tests.fixtures.batches import LEASE, held, result, run_to_the_end, submit
from worker.dispatcher.dispatcher import Dispatcher
from worker.queue.broker import Broker
from worker.store.batches import batches, responses
from worker.store.batches.responses import NewResponse
from worker.store.database.session import Store
from worker.store.shards import control, shards
from worker.store.shards.shards import Progress
from worker.store.sweeping import due_work
from worker.store.sweeping.due_work import Due


def change(store: Store, statement: str) -> None:
    with store.transaction() as session:
        session.execute(text(statement))


def found(store: Store) -> frozenset[Due]:
    with store.look() as session:
        return due_work.find(session)


def expired_delivery(store: Store) -> None:
    submit(store, num_requests=1, shard_size=1, callback_url="http://127.0.0.1:9/")
    run_to_the_end(store, held(store, 1))
    change(store, "UPDATE deliveries SET state = 'sending', lease_expires_at = now() - interval '1 s'")


def timeout(store: Store) -> None:
    submit(store)
    change(store, "UPDATE shards SET timeout_at = now() - interval '1 s'")


def uncounted_result(store: Store) -> None:
    batch_id = submit(store)
    with store.transaction() as session:
        batches.lock(session, batch_id)
        with store.transaction() as other:  # a save that does not get the lock does not count
            progress = Progress(held(store, 1), [result(1)], running_tokens=0)
            shards.save(other, [progress], lease=LEASE)


def stopping_batch(store: Store) -> None:
    submit(store)
    change(store, "UPDATE batches SET expires_at = now() - interval '1 s'")


def start(store: Store) -> None:
    submit(store)
    change(store, "UPDATE batches SET paused_at = now(), start_after = now() - interval '1 s'")


def unstored_response(store: Store) -> None:
    batch_id = submit(store, num_requests=1, shard_size=1)
    with store.transaction() as session:
        responses.add(session, NewResponse(batch_id, {}, [], 0, is_stored=False))
    run_to_the_end(store, held(store, 1))
    change(store, "UPDATE batches SET finished_at = now() - interval '2 min'")


def deleted_batch(store: Store) -> None:
    batch_id = submit(store, num_requests=1, shard_size=1)
    run_to_the_end(store, held(store, 1))
    with store.transaction() as session:
        control.remove(session, batch_id)


@pytest.mark.parametrize(
    ("kind", "make_due"),
    [
        (Due.EXPIRED_DELIVERIES, expired_delivery),
        (Due.TIMEOUTS, timeout),
        (Due.UNCOUNTED_RESULTS, uncounted_result),
        (Due.STOPPING_BATCHES, stopping_batch),
        (Due.STARTS, start),
        (Due.UNSTORED_RESPONSES, unstored_response),
        (Due.DELETED_BATCHES, deleted_batch),
    ],
)
def test_a_sweep_does_what_is_due(
    store: Store, broker: Broker, kind: Due, make_due: Callable[[Store], None]
) -> None:
    assert kind not in found(store)
    make_due(store)
    assert kind in found(store)
    Dispatcher(store, broker, max_attempts=5).sweep()
    assert kind not in found(store)


def test_what_waits_for_a_ticket_is_due(store: Store) -> None:
    submit(store, num_requests=1, shard_size=1, callback_url="http://127.0.0.1:9/")
    assert found(store) == {Due.READY_SHARDS}
    run_to_the_end(store, held(store, 1))
    assert found(store) == {Due.PENDING_DELIVERIES}


def test_where_nothing_is_due_a_sweep_issues_nothing(
    store: Store, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(store) == frozenset()
    monkeypatch.setattr(Dispatcher, "issue", lambda _: pytest.fail("asked for tickets"))
    Dispatcher(store, broker, max_attempts=5).sweep()
