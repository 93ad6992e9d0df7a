import json
from datetime import timedelta

import pytest
from sqlalchemy import text

from tests.fixtures.batches import held, run_to_the_end, submit
from tests.fixtures.deployment import eventually
from tests.fixtures.receiver import receiver
from tests.fixtures.webhooks import deliverer
from worker.contract.states import EventState
from worker.store.database.session import Store
from worker.store.webhooks import deliveries, delivery_log
from worker.store.webhooks.deliveries import DeliveryOutcome
from worker.store.webhooks.delivery_log import DeliveryView
from worker.webhooks import delivery as delivery_module
from worker.webhooks.backoff import DELAYS, retry_in
from worker.webhooks.sender import Answer


def ended_batch(store: Store, url: str) -> tuple[str, str]:
    batch_id = submit(store, num_requests=1, callback_url=url)
    run_to_the_end(store, held(store, 1))
    with store.transaction() as session:
        return batch_id, str(session.scalar(text("SELECT id FROM webhook_events")))


def attempt(store: Store, event_id: str) -> tuple[Answer, DeliveryOutcome] | None:
    with store.transaction() as session:
        delivery_id = session.scalar(
            text("SELECT id FROM deliveries WHERE event_id = :id AND endpoint_id IS NULL"), {"id": event_id}
        )
    return deliverer(store).deliver(delivery_id)


def delivery(store: Store, batch_id: str) -> DeliveryView:
    with store.transaction() as session:
        found = delivery_log.delivery_of(session, batch_id)
    assert found is not None
    return found


def summary(store: Store, batch_id: str) -> tuple:
    found = delivery(store, batch_id)
    return found.event_id, found.state, found.attempts, found.last_status_code, found.last_error


def make_due(store: Store) -> None:
    with store.transaction() as session:
        session.execute(text("UPDATE deliveries SET next_attempt_at = now()"))
        session.execute(text("UPDATE webhook_receivers SET paused_until = now()"))


def test_an_event_is_delivered_once(store: Store) -> None:
    with receiver() as hook:
        batch_id, event_id = ended_batch(store, hook.url)
        assert attempt(store, event_id) is not None
        assert attempt(store, event_id) is None
        assert len(hook.calls) == 1
        body = json.loads(hook.calls[0][1])
    assert (body["id"], body["type"], body["batch_id"]) == (event_id, "batch.completed", batch_id)
    assert summary(store, batch_id) == (event_id, EventState.DELIVERED, 1, 200, None)


def test_a_failed_attempt_is_recorded_and_tried_again_with_the_same_id_and_body(store: Store) -> None:
    with receiver((500, {})) as hook:
        batch_id, event_id = ended_batch(store, hook.url)
        attempt(store, event_id)
        assert summary(store, batch_id) == (event_id, EventState.PENDING, 1, 500, None)
        assert attempt(store, event_id) is None, "it is not due yet"
        make_due(store)
        attempt(store, event_id)
        (first, body), (second, same_body) = hook.calls
    assert first["webhook-id"] == second["webhook-id"] == event_id
    assert body == same_body
    assert delivery(store, batch_id).state is EventState.DELIVERED


def test_410_ends_it(store: Store) -> None:
    with receiver((410, {})) as hook:
        batch_id, event_id = ended_batch(store, hook.url)
        attempt(store, event_id)
    assert delivery(store, batch_id).state is EventState.FAILED


def test_an_unreachable_receiver_is_given_up_on_after_three_days(store: Store) -> None:
    batch_id, event_id = ended_batch(store, "http://127.0.0.1:1/")
    for _ in range(len(DELAYS) + 1):
        assert delivery(store, batch_id).state is EventState.PENDING
        make_due(store)
        attempt(store, event_id)
    final = delivery(store, batch_id)
    assert (final.state, final.attempts) == (EventState.FAILED, 10)
    assert final.last_error is not None


def test_the_sender_of_a_dead_worker_is_replaced(store: Store) -> None:
    with receiver() as hook:
        batch_id, event_id = ended_batch(store, hook.url)
        with store.transaction() as session:
            delivery_id = session.scalar(text("SELECT id FROM deliveries"))
            assert deliveries.claim(session, delivery_id, lease=timedelta(0), most_at_once=1) is not None
        assert attempt(store, event_id) is None
        with store.transaction() as session:
            assert deliveries.return_expired(session, limit=10) == 1
        assert attempt(store, event_id) is not None
    assert delivery(store, batch_id).state is EventState.DELIVERED


def test_the_schedule() -> None:
    for number, seconds in enumerate(DELAYS, 1):
        wait = retry_in(number)
        assert wait is not None
        assert 0.8 * seconds <= wait.total_seconds() <= 1.2 * seconds
    assert retry_in(len(DELAYS) + 1) is None
    longer = retry_in(1, retry_after=60)
    assert longer is not None
    assert longer.total_seconds() == 60


def test_a_slow_receiver_does_not_cost_the_lease(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_module, "RENEW_SECONDS", 0.05)
    with receiver() as hook:
        ended_batch(store, hook.url)
        with store.transaction() as session:
            delivery_id = session.scalar(text("SELECT id FROM deliveries"))
        expiries: set[object] = set()

        def slowly(*_: object, **__: object) -> Answer:
            def renewed() -> bool:
                with store.transaction() as session:
                    expiries.add(session.scalar(text("SELECT lease_expires_at FROM deliveries")))
                return len(expiries) > 2

            eventually(renewed, what="a lease that is renewed")
            return Answer(1, 200)

        monkeypatch.setattr(delivery_module, "send", slowly)
        made = deliverer(store).deliver(delivery_id)
        assert made is not None
        assert made[0] == Answer(1, 200)
    with store.transaction() as session:
        state = session.execute(text("SELECT state, lease_expires_at FROM deliveries")).one()
    assert tuple(state) == ("delivered", None)
