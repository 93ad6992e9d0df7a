from datetime import timedelta

from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.api.conftest import client, config  # noqa: F401 - fixtures
from tests.fixtures.batches import held, run_to_the_end, submit
from worker.store.database.session import Store
from worker.store.watching import retention

MONTH = timedelta(days=30)


def drop(store: Store, limit: int = 100) -> int:
    with store.transaction() as session:
        return retention.drop_old_results(session, kept_for=MONTH, limit=limit)


def age(store: Store, days: int) -> None:
    with store.transaction() as session:
        session.execute(
            text("UPDATE batches SET finished_at = finished_at - make_interval(days => :d)"), {"d": days}
        )


def drop_events(store: Store) -> None:
    with store.transaction() as session:
        retention.drop_old_events(session, kept_for=MONTH, limit=100)


def count(store: Store, table: str) -> int:
    with store.transaction() as session:
        return session.scalar(text(f"SELECT count(*) FROM {table}")) or 0


def test_old_results_go_and_the_batch_stays(store: Store, client: TestClient) -> None:  # noqa: F811
    batch_id = submit(store, num_requests=4, shard_size=4, callback_url="https://example.com/hook")
    submit(store, num_requests=2)
    run_to_the_end(store, held(store, 1))
    age(store, 29)
    assert drop(store) == 0
    age(store, 2)
    assert drop(store) == 4
    assert drop(store) == 0
    assert [count(store, name) for name in ("batches", "shards", "requests", "results")] == [2, 1, 2, 0]
    answer = client.get(f"/v1/batch/{batch_id}").json()
    assert (answer["status"], answer["counts"]["completed"], answer["outputs"]) == ("completed", 4, None)
    assert answer["results_dropped_at"] is not None
    gone = client.get(f"/v1/batch/{batch_id}/results")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "results_dropped")


def test_a_pass_is_bounded(store: Store) -> None:
    for _ in range(2):
        submit(store, num_requests=5, shard_size=5)
    for shard_id in (1, 2):
        run_to_the_end(store, held(store, shard_id))
    age(store, 40)
    passes = [drop(store, limit=2) for _ in range(7)]
    assert passes == [2, 2, 1, 2, 2, 1, 0]
    assert count(store, "requests") == count(store, "shards") == 0


def test_a_batch_that_has_not_ended_is_left_alone(store: Store) -> None:
    submit(store)
    with store.transaction() as session:
        session.execute(text("UPDATE batches SET created_at = now() - interval '1 year'"))
    assert drop(store) == 0
    assert count(store, "requests") == 4


def test_an_event_stays_until_it_is_delivered_and_no_longer(store: Store) -> None:
    """It holds the outputs of a small batch, which retention has promised to drop."""
    submit(store, num_requests=2, callback_url="https://example.com/hook")
    run_to_the_end(store, held(store, 1))
    drop_events(store)
    assert count(store, "webhook_events") == 1, "it is new"
    age(store, 40)
    with store.transaction() as session:
        session.execute(text("UPDATE webhook_events SET created_at = now() - interval '40 days'"))
    assert drop(store) == 2
    drop_events(store)
    assert count(store, "webhook_events") == 1, "it is not delivered yet"
    with store.transaction() as session:
        session.execute(text("UPDATE deliveries SET state = 'delivered'"))
    drop_events(store)
    assert [count(store, name) for name in ("webhook_events", "deliveries", "batches")] == [0, 0, 1]
