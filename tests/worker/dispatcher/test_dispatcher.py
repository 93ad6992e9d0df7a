from datetime import timedelta

from kombu.exceptions import OperationalError as BrokerError
from sqlalchemy import text

from tests.fixtures.batches import claim, held, run_to_the_end, submit
from worker.contract.messages import Ticket
from worker.contract.states import BatchStatus
from worker.dispatcher.dispatcher import MIN_WINDOW, Dispatcher
from worker.queue.broker import Broker
from worker.queue.publish import publish
from worker.store.batches import batch_views, idempotency
from worker.store.database.session import Store
from worker.store.shards import control, fair_share
from worker.store.watching import workers


def age_tickets(store: Store, seconds: int) -> None:
    with store.transaction() as session:
        session.execute(text(f"UPDATE shards SET ticketed_at = ticketed_at - interval '{seconds} seconds'"))


def test_a_ticket_reaches_redis_with_the_shard_id_and_nothing_of_the_prompt(
    store: Store, broker: Broker
) -> None:
    submit(store, num_requests=2, shard_size=2)
    Dispatcher(store, broker, max_attempts=5).sweep()
    assert broker.length("gpu") == 1
    message = broker._redis.lindex("gpu", 0)
    assert b"shard 1 of batch_" in message
    assert b'"id": "1.1"' in message
    assert b"prompt 0" not in message


def test_the_window_follows_the_live_workers(store: Store, broker: Broker) -> None:
    submit(store, num_requests=100, shard_size=1)
    sent: list[Ticket] = []
    dispatcher = Dispatcher(store, broker, max_attempts=5, publish=sent.append)
    dispatcher.sweep()
    assert len(sent) == MIN_WINDOW
    with store.transaction() as session:
        workers.seen(session, name="gpu@a", queue="gpu", slots=10, info={})
    dispatcher.sweep()
    assert len(sent) == 20
    dispatcher.sweep()
    assert len(sent) == 20


def test_what_redis_lost_is_ticketed_again(store: Store, broker: Broker) -> None:
    submit(store, num_requests=2, shard_size=1)
    dispatcher = Dispatcher(store, broker, max_attempts=5)
    dispatcher.sweep()
    assert broker.length("gpu") == 2
    broker._redis.flushall()
    dispatcher.sweep()
    assert broker.length("gpu") == 0, "young tickets may be on their way to a worker"
    age_tickets(store, 3)
    dispatcher.sweep()
    assert broker.length("gpu") == 2


def test_while_tickets_wait_in_redis_old_ones_are_left_alone(store: Store, broker: Broker) -> None:
    submit(store, num_requests=2, shard_size=1)
    dispatcher = Dispatcher(store, broker, max_attempts=5)
    dispatcher.sweep()
    age_tickets(store, 30)
    dispatcher.sweep()
    assert broker.length("gpu") == 2
    age_tickets(store, 31)
    dispatcher.sweep()
    assert broker.length("gpu") == 4


def test_a_publish_that_fails_is_made_good(store: Store, broker: Broker) -> None:
    submit(store, num_requests=1)

    def refuse(_: Ticket) -> None:
        raise BrokerError("no Redis")

    Dispatcher(store, broker, max_attempts=5, publish=refuse).sweep()
    age_tickets(store, 3)
    sent: list[Ticket] = []
    Dispatcher(store, broker, max_attempts=5, publish=sent.append).sweep()
    assert [ticket.task_id for ticket in sent] == ["1.2"]


def test_without_redis_the_rest_of_the_sweep_goes_on(store: Store) -> None:
    batch_id = submit(store, num_requests=2, completion_window=timedelta(0))
    away = Broker("redis://127.0.0.1:1/0")
    Dispatcher(store, away, max_attempts=5, publish=publish).sweep()
    away.close()
    with store.transaction() as session:
        view = batch_views.get(session, batch_id)
    assert view is not None
    assert view.status is BatchStatus.EXPIRED


def test_what_a_dead_worker_held_is_returned_and_ticketed_in_one_sweep(store: Store, broker: Broker) -> None:
    submit(store, num_requests=2, shard_size=2)
    sent: list[Ticket] = []
    dispatcher = Dispatcher(store, broker, max_attempts=5, publish=sent.append)
    held(store, 1, lease=timedelta(0))
    dispatcher.sweep()
    assert [ticket.row_id for ticket in sent] == [1]
    assert claim(store, 1) is not None


def test_an_ended_batch_gets_its_callback_ticketed(store: Store, broker: Broker) -> None:
    submit(store, num_requests=1, callback_url="https://example.com/hook")
    sent: list[Ticket] = []
    dispatcher = Dispatcher(store, broker, max_attempts=5, publish=sent.append)
    run_to_the_end(store, held(store, 1))
    dispatcher.sweep()
    assert [(ticket.task, ticket.queue) for ticket in sent] == [("deliver_event", "callbacks")]


def test_tidying_drops_what_nobody_will_ask_for(store: Store, broker: Broker) -> None:
    batch_id = submit(store)
    with store.transaction() as session:
        idempotency.remember(session, "old", "f", batch_id)
        idempotency.remember(session, "new", "f", batch_id)
        workers.seen(session, name="gpu@dead", queue="gpu", slots=1, info={})
        session.flush()
        session.execute(
            text("UPDATE idempotency_keys SET created_at = now() - interval '3 days' WHERE key = 'old'")
        )
        session.execute(text("UPDATE workers SET seen_at = now() - interval '2 days'"))
    Dispatcher(store, broker, max_attempts=5).tidy()
    with store.transaction() as session:
        assert session.scalars(text("SELECT key FROM idempotency_keys")).all() == ["new"]
        assert session.scalar(text("SELECT count(*) FROM workers")) == 0


def test_of_one_priority_the_earliest_deadline_goes_first(store: Store, broker: Broker) -> None:
    # Shard ids count up in this order.
    submit(store, num_requests=1)
    submit(store, num_requests=1, completion_window=timedelta(hours=9))
    submit(store, num_requests=1, completion_window=timedelta(hours=1))
    submit(store, num_requests=1, priority=1)
    paused = submit(store, num_requests=1, priority=9)
    with store.transaction() as session:
        control.pause(session, paused)
    sent: list[Ticket] = []
    dispatcher = Dispatcher(store, broker, max_attempts=2, publish=sent.append)
    dispatcher.sweep()
    assert {ticket.row_id for ticket in sent} == {1, 2, 3, 4}
    assert in_line(store, 4) == [4, 3, 2, 1]
    with store.transaction() as session:
        control.resume(session, paused)
    dispatcher.sweep()
    assert [ticket.row_id for ticket in sent[4:]] == [5]
    with store.transaction() as session:
        control.pause(session, paused)
    assert in_line(store, 5) == [4, 3, 2, 1, None], "a ticket of a paused batch is nobody's turn"


def in_line(store: Store, count: int) -> list[int | None]:
    """Whose turn it is, time after time."""
    turns: list[int | None] = []
    with store.transaction() as session:
        for _ in range(count):
            chosen = fair_share.first(session, but=[turn for turn in turns if turn is not None])
            turns.append(None if chosen is None else chosen.shard_id)
    return turns


def test_a_long_line_is_read_from_an_index(store: Store) -> None:
    submit(store, num_requests=3000, shard_size=1)
    with store.transaction() as session:
        session.execute(text("ANALYZE shards"))
        plan = session.scalars(
            text(
                "EXPLAIN SELECT id FROM shards WHERE state IN ('ready')"
                " AND model_fingerprint = '' AND tenant_id = 'default'"
                " ORDER BY priority DESC, expires_at, id LIMIT 8"
            )
        ).all()
    assert any("shards_due_index" in line for line in plan), plan
    assert not any("Sort" in line for line in plan), plan
