"""The cap on deliveries at once and the circuit breaker, as every worker sees them."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import text

from tests.fixtures.receiver import receiver
from tests.fixtures.webhooks import deliverer, delivery_ids, end_batch, endpoint, make_due
from worker.contract.states import EventState
from worker.store.database.session import Store
from worker.store.webhooks import deliveries, delivery_tickets, receivers
from worker.store.webhooks.deliveries import DeliveryClaim
from worker.store.webhooks.receivers import FAILURES_TO_PAUSE, LONGEST_PAUSE

SOON = timedelta(seconds=60)


def claim(store: Store, delivery_id: str, *, most_at_once: int = 2) -> DeliveryClaim | None:
    with store.transaction() as session:
        return deliveries.claim(session, delivery_id, lease=SOON, most_at_once=most_at_once)


def ticketed(store: Store, *, window: int = 100, most_at_once: int = 2) -> list[str]:
    with store.transaction() as session:
        issued = delivery_tickets.issue(session, window=window, reissue_after=SOON, most_at_once=most_at_once)
    return [str(ticket.row_id) for ticket in issued]


def standing(store: Store, key: str) -> tuple[int, float]:
    """Return the failures in a row, and for how many seconds the receiver is paused."""
    with store.transaction() as session:
        row = session.execute(
            text(
                "SELECT num_failures, extract(epoch FROM paused_until - now()) AS pause"
                " FROM webhook_receivers WHERE key = :key"
            ),
            {"key": key},
        ).one()
    return row.num_failures, float(row.pause or 0)


def fail(store: Store, times: int) -> None:
    for _ in range(times):
        make_due(store)
        deliverer(store).deliver(delivery_ids(store, "state = 'pending'")[0])


def test_no_more_deliveries_at_once_than_allowed_whoever_asks(store: Store) -> None:
    endpoint(store, "http://127.0.0.1:1/")
    for _ in range(6):
        end_batch(store)
    together = threading.Barrier(6)

    def one(delivery_id: str) -> bool:
        together.wait(30)
        return claim(store, delivery_id) is not None

    with ThreadPoolExecutor(6) as pool:
        taken = list(pool.map(one, delivery_ids(store)))
    assert sum(taken) == 2


def test_a_receiver_gets_no_more_tickets_than_it_can_use(store: Store) -> None:
    endpoint(store, "http://127.0.0.1:1/")
    for _ in range(5):
        end_batch(store)
    first = ticketed(store)
    assert len(first) == 2
    assert ticketed(store) == []
    assert claim(store, first[0]) is not None
    assert ticketed(store) == [], "what is being sent counts"


def test_a_lost_ticket_is_issued_again(store: Store) -> None:
    endpoint(store, "http://127.0.0.1:1/")
    end_batch(store)
    assert len(ticketed(store)) == 1
    with store.transaction() as session:
        session.execute(text("UPDATE deliveries SET ticketed_at = ticketed_at - interval '61 seconds'"))
    assert len(ticketed(store)) == 1


def test_a_receiver_with_a_backlog_does_not_delay_another(store: Store) -> None:
    slow = endpoint(store, "http://127.0.0.1:1/", event_types=["batch.completed"])
    for _ in range(20):
        end_batch(store)
    with store.transaction() as session:
        session.execute(text("UPDATE webhook_endpoints SET is_enabled = false WHERE id = :id"), {"id": slow})
    quick = endpoint(store, "http://127.0.0.1:1/")
    end_batch(store)
    [wanted] = delivery_ids(store, f"endpoint_id = '{quick}'")
    assert wanted in ticketed(store, window=3)


def test_what_one_receiver_holds_takes_no_room_from_another(store: Store) -> None:
    endpoint(store, "http://127.0.0.1:1/")
    for _ in range(3):
        end_batch(store)
    held = ticketed(store)
    assert len(held) == 2
    assert claim(store, held[0]) is not None
    end_batch(store, callback_url="http://127.0.0.1:2/")
    (other,) = ticketed(store)
    assert other not in held


def test_failures_in_a_row_pause_the_receiver_for_longer_and_longer(store: Store) -> None:
    key = endpoint(store, "http://127.0.0.1:1/")
    end_batch(store)
    fail(store, FAILURES_TO_PAUSE - 1)
    assert standing(store, key) == (FAILURES_TO_PAUSE - 1, 0)
    fail(store, 1)
    failures, pause = standing(store, key)
    assert failures == FAILURES_TO_PAUSE
    assert 0 < pause <= 30
    end_batch(store)
    assert ticketed(store) == []
    [fresh] = delivery_ids(store, "attempts = 0")
    assert claim(store, fresh) is None, "a ticket that was under way when the pause began"
    fail(store, 1)
    assert 30 < standing(store, key)[1] <= 60
    with store.transaction() as session:
        for _ in range(20):
            receivers.record(session, key, is_healthy=False)
    assert LONGEST_PAUSE.total_seconds() - 60 < standing(store, key)[1] <= LONGEST_PAUSE.total_seconds()


def test_after_the_pause_one_delivery_is_tried_and_its_success_lets_all_through(store: Store) -> None:
    with receiver(*[(500, {})] * FAILURES_TO_PAUSE) as hook:
        key = endpoint(store, hook.url)
        for _ in range(4):
            end_batch(store)
        fail(store, FAILURES_TO_PAUSE)
        make_due(store)
        [probe] = ticketed(store)
        others = [delivery_id for delivery_id in delivery_ids(store) if delivery_id != probe]
        held = claim(store, probe)
        assert held is not None
        assert [claim(store, delivery_id) for delivery_id in others] == [None] * 3
        with store.transaction() as session:
            deliveries.record_attempt(
                session,
                held,
                deliveries.Attempt(1, 200, None),
                deliveries.DeliveryOutcome(EventState.DELIVERED),
            )
        assert standing(store, key) == (0, 0)
        make_due(store)
        assert len(ticketed(store)) == 2


def test_a_probe_that_fails_renews_the_pause(store: Store) -> None:
    key = endpoint(store, "http://127.0.0.1:1/")
    end_batch(store)
    fail(store, FAILURES_TO_PAUSE + 1)
    failures, pause = standing(store, key)
    assert failures == FAILURES_TO_PAUSE + 1
    assert pause > 30


def test_callbacks_to_one_host_share_a_breaker_and_other_hosts_do_not(store: Store) -> None:
    with receiver() as healthy:
        for i in range(FAILURES_TO_PAUSE):
            end_batch(store, callback_url=f"http://127.0.0.1:1/{i}?token={i}")
        for delivery_id in delivery_ids(store):
            deliverer(store).deliver(delivery_id)
        assert standing(store, "default http://127.0.0.1:1")[1] > 0
        end_batch(store, callback_url="HTTP://127.0.0.1:1/again")
        end_batch(store, callback_url=healthy.url)
        [again, other] = delivery_ids(store, "attempts = 0")
        assert deliverer(store).deliver(again) is None
        assert deliverer(store).deliver(other) is not None
        assert len(healthy.calls) == 1


@pytest.mark.parametrize(
    ("status", "counts"), [(500, True), (503, True), (429, True), (301, False), (400, False), (404, False)]
)
def test_only_a_receiver_in_trouble_counts_against_itself(store: Store, status: int, counts: bool) -> None:
    with receiver((status, {})) as hook:
        key = endpoint(store, hook.url)
        end_batch(store)
        fail(store, 1)
    assert standing(store, key)[0] == int(counts)


def test_a_replay_does_not_wait_for_the_pause(store: Store) -> None:
    with receiver(*[(500, {})] * FAILURES_TO_PAUSE) as hook:
        endpoint(store, hook.url)
        end_batch(store)
        fail(store, FAILURES_TO_PAUSE)
        assert ticketed(store) == []
        with store.transaction() as session:
            event_id = session.scalars(text("SELECT id FROM webhook_events")).one()
            assert deliveries.replay(session, event_id=event_id) == 1
        [again] = ticketed(store)
        made = deliverer(store).deliver(again)
    assert made is not None
    assert made[0].is_delivered


def test_idle_receivers_are_forgotten_and_those_with_work_are_not(store: Store) -> None:
    end_batch(store, callback_url="http://127.0.0.1:1/waits")
    with receiver() as hook:
        end_batch(store, callback_url=hook.url)
        deliverer(store).deliver(delivery_ids(store)[1])
    with store.transaction() as session:
        receivers.use(session, ["in use"])
        session.execute(
            text("UPDATE webhook_receivers SET used_at = now() - interval '2 days' WHERE key <> 'in use'")
        )
        receivers.forget_the_idle(session)
        keys = set(session.scalars(text("SELECT key FROM webhook_receivers")))
    assert keys == {"in use", "default http://127.0.0.1:1"}


def test_a_receiver_that_was_dropped_too_soon_comes_back(store: Store) -> None:
    """Between two transactions: one counts on the row while another drops it."""
    endpoint(store, "http://127.0.0.1:1/")
    end_batch(store)
    with store.transaction() as session:
        session.execute(text("DELETE FROM webhook_receivers"))
    assert ticketed(store) == []
    with store.transaction() as session:
        receivers.forget_the_idle(session)
    assert len(ticketed(store)) == 1


def test_a_batch_that_ends_waits_for_no_receiver(store: Store) -> None:
    """Two batches that end in one transaction must not lock receivers in an order of their own."""
    key = endpoint(store, "http://127.0.0.1:1/")
    end_batch(store)
    with store.transaction() as session:
        assert receivers.admit(session, key, most=2)
        end_batch(store)
    assert len(delivery_ids(store)) == 2
