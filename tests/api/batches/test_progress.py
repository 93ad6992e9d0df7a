import json
import threading
from datetime import timedelta

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.fixtures.batches import LEASE, held, result, run_to_the_end, submit
from worker.store.batches import batch_views
from worker.store.batches.batch_views import BatchView
from worker.store.database.session import Store
from worker.store.shards import shards
from worker.store.shards.shards import Progress
from worker.store.watching import workers


def seen(store: Store, *, slots: int = 4) -> None:
    with store.transaction() as session:
        workers.seen(session, name="gpu@a", queue="gpu", slots=slots, info={})


def waiting(client: TestClient, batch_id: str) -> dict[str, object]:
    return dict(client.get(f"/v1/batch/{batch_id}").json()["waiting"])


def test_it_says_why_it_waits(client: TestClient, store: Store) -> None:
    first = submit(store, num_requests=4)
    second = submit(store, num_requests=2)
    assert waiting(client, second)["reason"] == "no_worker"
    seen(store, slots=0)
    assert waiting(client, second)["reason"] == "model_loading"
    seen(store)
    place = {"position": 2, "batches_ahead": 1, "requests_ahead": 4}
    assert waiting(client, second) == {
        "reason": "in_line",
        "message": "4 requests of 1 batches run before it",
        **place,
    }
    assert waiting(client, first)["reason"] == "starting"
    run_to_the_end(store, held(store, 1))
    assert waiting(client, second)["requests_ahead"] == 2
    claimed = held(store, 2)
    assert client.get(f"/v1/batch/{first}").json()["waiting"] is None
    client.post(f"/v1/batch/{first}/pause")
    assert waiting(client, second)["reason"] == "starting", "what is paused is not ahead"
    run_to_the_end(store, claimed)
    assert client.get(f"/v1/batch/{first}").json()["waiting"] is None


def test_priority_then_deadline_then_age_make_the_line(client: TestClient, store: Store) -> None:
    seen(store)
    plain = submit(store)
    late = submit(store, completion_window=timedelta(hours=9))
    soon = submit(store, completion_window=timedelta(hours=1))
    high = submit(store, priority=1)
    order = sorted([plain, late, soon, high], key=lambda one: int(str(waiting(client, one)["position"])))
    assert order == [high, soon, late, plain]


def test_events_follow_a_batch_to_its_end(client: TestClient, store: Store) -> None:
    batch_id = submit(store, num_requests=4, shard_size=2)

    def work() -> None:
        for shard_id in (1, 2):
            run_to_the_end(store, held(store, shard_id))

    thread = threading.Thread(target=work)
    with client.stream("GET", f"/v1/batch/{batch_id}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        assert next(lines) == "event: progress"
        assert json.loads(next(lines).removeprefix("data: "))["status"] == "pending"
        thread.start()
        rest = [line for line in lines if line]
    thread.join()
    assert rest[-2] == "event: completed"
    last = json.loads(rest[-1].removeprefix("data: "))
    assert (last["batch_id"], last["counts"]["completed"]) == (batch_id, 4)
    assert client.get("/v1/batch/batch_nope/events").status_code == 404


def view(store: Store, batch_id: str) -> BatchView:
    with store.transaction() as session:
        found = batch_views.get(session, batch_id)
    assert found is not None
    return found


def test_the_rate_is_measured_between_saves(store: Store) -> None:
    batch_id = submit(store, num_requests=2, max_tokens=1000)
    claimed = held(store, 1)
    for tokens, seconds in ((0, 4), (100, 4), (200, 4), (300, 60), (310, 4)):
        with store.transaction() as session:
            shards.save(session, [Progress(claimed, [], tokens)], lease=LEASE)
        measured = view(store, batch_id).tokens_per_second
        with store.transaction() as session:
            session.execute(text(f"UPDATE batches SET measured_at = now() - interval '{seconds} seconds'"))
        if tokens == 0:
            assert measured is None
        else:
            # 100 tokens in 4 s each time; what came in the minute says nothing.
            assert measured == pytest.approx(25, rel=0.2)


def test_counts_freeze_at_the_end(client: TestClient, store: Store) -> None:
    batch_id = submit(store, num_requests=2, shard_size=2)
    claimed = held(store, 1)
    client.post(f"/v1/batch/{batch_id}/cancel")
    with store.transaction() as session:
        shards.release(session, claimed)
    before = client.get(f"/v1/batch/{batch_id}").json()
    with store.transaction() as session:
        late = [result(one.id) for one in claimed.requests]
        assert shards.save(session, [Progress(claimed, late, 9)], lease=LEASE) == [shards.AfterSave.LOST]
    assert client.get(f"/v1/batch/{batch_id}").json() == before
    assert before["eta_seconds"] is None
    assert before["tokens"]["expected"] == before["tokens"]["done"]
