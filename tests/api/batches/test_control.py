import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from math import ceil

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.fixtures.batches import LEASE, claim, held, result, run_to_the_end, submit
from tests.fixtures.deployment import eventually
from tests.fixtures.measured import measured_worker
from worker.store.database.session import Store
from worker.store.shards import leases, shards
from worker.store.shards.shards import Progress
from worker.store.watching import retention
from worker.values.outcomes import Outcome
from worker.values.results import RequestError


def finish(store: Store, shard_id: int, *, failed: int = 0) -> None:
    """End a shard, its first requests failed."""
    claimed = held(store, shard_id)
    results = [
        result(one.id, outcome=Outcome.FAILED if place < failed else Outcome.COMPLETED)
        for place, one in enumerate(claimed.requests)
    ]
    with store.transaction() as session:
        shards.save(session, [Progress(claimed, results, 0, is_last=True)], lease=LEASE)


def prompts(store: Store, batch_id: str) -> list[tuple[int, str, int]]:
    with store.transaction() as session:
        query = (
            "SELECT requests.position, prompt, shards.position FROM requests JOIN shards"
            f" ON shards.id = shard_id WHERE requests.batch_id = '{batch_id}' ORDER BY 1"
        )
        return [tuple(row) for row in session.execute(text(query))]  # type: ignore[misc]


def test_a_paused_batch_waits_and_says_so(client: TestClient, store: Store) -> None:
    batch_id = submit(store)
    paused = client.post(f"/v1/batch/{batch_id}/pause").json()
    assert (paused["status"], paused["paused"], paused["waiting"]["reason"]) == ("pending", True, "paused")
    assert claim(store, 1) is None
    assert client.post(f"/v1/batch/{batch_id}/pause").status_code == 200
    resumed = client.post(f"/v1/batch/{batch_id}/resume").json()
    assert (resumed["paused"], resumed["waiting"]["reason"]) == (False, "no_worker")
    assert claim(store, 1) is not None


def test_what_has_ended_can_be_neither_paused_nor_resumed(client: TestClient, store: Store) -> None:
    batch_id = submit(store)
    client.post(f"/v1/batch/{batch_id}/cancel")
    for what in ("pause", "resume"):
        answer = client.post(f"/v1/batch/{batch_id}/{what}")
        assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")


def test_a_retry_is_a_new_batch_of_what_failed(client: TestClient, store: Store) -> None:
    batch_id = submit(
        store,
        num_requests=6,
        shard_size=3,
        priority=5,
        metadata={"a": "b"},
        callback_url="https://example.com/hook",
        completion_window=timedelta(hours=2),
    )
    url = f"/v1/batch/{batch_id}/retry"
    assert client.post(url).status_code == 409, "it still runs"
    finish(store, 1, failed=2)
    finish(store, 2, failed=1)
    before = client.get(f"/v1/batch/{batch_id}").json()
    answer = client.post(url, headers={"Idempotency-Key": "again"})
    assert answer.status_code == 202
    accepted = answer.json()
    assert (accepted["requests"], accepted["retry_of"], accepted["status"]) == (3, batch_id, "pending")
    assert client.post(url, headers={"Idempotency-Key": "again"}).json() == accepted
    # Of two requests a shard, as the API is set up to make them.
    new_id = accepted["batch_id"]
    assert prompts(store, new_id) == [(0, "prompt 0", 0), (1, "prompt 1", 0), (2, "prompt 3", 1)]
    again = client.get(f"/v1/batch/{new_id}").json()
    assert (again["priority"], again["metadata"], again["tokens"]["max"]) == (5, {"a": "b"}, 30)
    assert again["callback"]["url"] == "https://example.com/hook"
    assert again["expires_at"] is not None
    assert client.get(f"/v1/batch/{batch_id}").json() == before, "the old batch stays as it was"
    for shard_id in (3, 4):
        run_to_the_end(store, held(store, shard_id))
    assert client.get(f"/v1/batch/{new_id}").json()["status"] == "completed"
    assert client.post(f"/v1/batch/{new_id}/retry").json()["error"]["code"] == "nothing_to_retry"


def test_a_retry_takes_the_cancelled_along_if_asked(client: TestClient, store: Store) -> None:
    batch_id = submit(store, num_requests=4, shard_size=2)
    finish(store, 1, failed=1)
    client.post(f"/v1/batch/{batch_id}/cancel")
    assert client.post(f"/v1/batch/{batch_id}/retry").json()["requests"] == 1
    assert client.post(f"/v1/batch/{batch_id}/retry?cancelled=true").json()["requests"] == 3


def test_one_key_is_for_one_retry(client: TestClient, store: Store) -> None:
    first, second = (submit(store, num_requests=1, shard_size=1) for _ in range(2))
    finish(store, 1, failed=1)
    finish(store, 2, failed=1)
    headers = {"Idempotency-Key": "k"}
    assert client.post(f"/v1/batch/{first}/retry", headers=headers).status_code == 202
    answer = client.post(f"/v1/batch/{second}/retry", headers=headers)
    assert (answer.status_code, answer.json()["error"]["type"]) == (422, "idempotency_error")


def test_deleting_takes_everything_of_an_ended_batch(client: TestClient, store: Store) -> None:
    batch_id = submit(store, callback_url="https://example.com/hook")
    other = submit(store)
    assert client.delete(f"/v1/batch/{batch_id}").status_code == 409
    finish(store, 1, failed=1)
    client.post(f"/v1/batch/{batch_id}/cancel")
    retried = client.post(f"/v1/batch/{batch_id}/retry").json()["batch_id"]
    assert client.delete(f"/v1/batch/{batch_id}").status_code == 204
    assert client.get(f"/v1/batch/{batch_id}").status_code == 404
    assert client.delete(f"/v1/batch/{batch_id}").status_code == 404
    assert client.get(f"/v1/batch/{retried}").json()["retry_of"] is None
    with store.transaction() as session:
        assert session.scalar(text("SELECT count(*) FROM webhook_events")) == 0
        while retention.drop_deleted(session, limit=1):
            pass
        assert session.scalar(text("SELECT count(*) FROM results")) == 0
        for column, table in (("batch_id", "requests"), ("batch_id", "shards"), ("id", "batches")):
            rows = session.scalars(text(f"SELECT DISTINCT {column} FROM {table} ORDER BY 1"))
            assert rows.all() == sorted([other, retried])


def test_a_key_of_a_deleted_batch_makes_a_new_one(client: TestClient) -> None:
    body, headers = {"prompts": ["a"]}, {"Idempotency-Key": "k"}
    first = client.post("/v1/batch/async", json=body, headers=headers).json()["batch_id"]
    client.post(f"/v1/batch/{first}/cancel")
    assert client.delete(f"/v1/batch/{first}").status_code == 204
    again = client.post("/v1/batch/async", json=body, headers=headers)
    assert again.status_code == 202
    assert again.json()["batch_id"] != first


def test_batches_are_listed_by_pages_the_newest_first(client: TestClient, store: Store) -> None:
    ids = [submit(store) for _ in range(5)][::-1]
    client.post(f"/v1/batch/{ids[3]}/cancel")
    first = client.get("/v1/batch", params={"limit": 2}).json()
    assert ([one["batch_id"] for one in first["data"]], first["has_more"]) == (ids[:2], True)
    rest = client.get("/v1/batch", params={"limit": 3, "after": first["last_id"]}).json()
    assert ([one["batch_id"] for one in rest["data"]], rest["has_more"]) == (ids[2:], False)
    cancelled = client.get("/v1/batch", params={"status": "cancelled"}).json()
    assert [one["batch_id"] for one in cancelled["data"]] == [ids[3]]
    assert client.get("/v1/batch", params={"after": "batch_nope"}).json()["error"]["param"] == "after"
    assert client.get("/v1/batch?limit=0").status_code == 422


def test_a_waiting_request_is_cancelled_at_once(client: TestClient, store: Store) -> None:
    batch_id = submit(store, num_requests=2, shard_size=2)
    answer = client.post(f"/v1/batch/{batch_id}/requests/0/cancel").json()
    assert answer["counts"] == {"total": 2, "pending": 1, "completed": 0, "failed": 0, "cancelled": 1}
    assert [one.prompts for one in held(store, 1).requests] == [("prompt 1",)]
    assert client.post(f"/v1/batch/{batch_id}/requests/9/cancel").json()["error"]["param"] == "index"


def test_a_batch_whose_last_requests_are_cancelled_one_by_one_completes(
    client: TestClient, store: Store
) -> None:
    batch_id = submit(store, num_requests=3, shard_size=2)
    finish(store, 1)
    answer = client.post(f"/v1/batch/{batch_id}/requests/2/cancel").json()
    assert (answer["status"], answer["counts"]["cancelled"]) == ("completed", 1)
    assert client.post(f"/v1/batch/{batch_id}/requests/2/cancel").status_code == 200
    (last,) = client.get(f"/v1/batch/{batch_id}/results", params={"after": 2}).json()["data"]
    assert (last["index"], last["error"]["code"]) == (2, "request_cancelled")


def test_too_many_failures_stop_the_batch(client: TestClient, store: Store) -> None:
    batch_id = submit(store, num_requests=6, shard_size=2, max_failed=1)
    running = held(store, 2)
    finish(store, 1, failed=1)
    assert client.get(f"/v1/batch/{batch_id}").json()["status"] == "processing"
    with store.transaction() as session:
        bad = [result(running.requests[0].id, outcome=Outcome.FAILED)]
        assert shards.save(session, [Progress(running, bad, 0)], lease=LEASE) == [shards.AfterSave.STOP]
        shards.release(session, running)
    ended = client.get(f"/v1/batch/{batch_id}").json()
    assert (ended["status"], ended["error"]["code"]) == ("failed", "max_failed_exceeded")
    assert ended["counts"] == {"total": 6, "pending": 0, "completed": 1, "failed": 2, "cancelled": 3}
    results = client.get(f"/v1/batch/{batch_id}/results", params={"after": 3}).json()["data"]
    assert {one["error"]["code"] for one in results} == {"max_failed_exceeded"}


def test_tokens_spent_stop_the_batch_running_ones_included(client: TestClient, store: Store) -> None:
    batch_id = submit(store, num_requests=6, shard_size=2, max_total_tokens=30)
    finish(store, 1)  # two requests of 3 + 7 tokens
    running = held(store, 2)
    for tokens, verdict in ((9, shards.AfterSave.CONTINUE), (10, shards.AfterSave.STOP)):
        with store.transaction() as session:
            assert shards.save(session, [Progress(running, [], tokens)], lease=LEASE) == [verdict]
    with store.transaction() as session:
        shards.release(session, running)
    ended = client.get(f"/v1/batch/{batch_id}").json()
    assert (ended["status"], ended["error"]["code"]) == ("failed", "max_total_tokens_reached")


@pytest.mark.parametrize(("budget", "first", "second"), [(10, 1, 1), (40, 3, 1), (80, 4, 2), (1000, 4, 4)])
def test_no_more_requests_start_than_the_budget_is_for(
    store: Store, budget: int, first: int, second: int
) -> None:
    submit(store, num_requests=8, shard_size=4, max_total_tokens=budget)  # a request may use 12 tokens
    assert [len(held(store, shard_id).requests) for shard_id in (1, 2)] == [first, second]


def test_what_the_budget_left_out_runs_while_some_is_left(client: TestClient, store: Store) -> None:
    batch_id = submit(store, num_requests=4, shard_size=4, max_total_tokens=25)
    for budget, num_started in ((25, 2), (5, 1)):  # a request uses 10 tokens, of the 12 it may
        claimed = held(store, 1)
        assert len(claimed.requests) == num_started, budget
        run_to_the_end(store, claimed)
    ended = client.get(f"/v1/batch/{batch_id}").json()
    assert (ended["status"], ended["usage"]["total_tokens"]) == ("failed", 30)
    assert (ended["counts"]["completed"], ended["progress"]) == (3, 0.75)


def test_a_batch_that_ends_within_its_rules_completes(client: TestClient, store: Store) -> None:
    batch_id = submit(store, num_requests=2, shard_size=2, max_failed=1, max_total_tokens=30)
    finish(store, 1, failed=1)
    assert client.get(f"/v1/batch/{batch_id}").json()["status"] == "completed"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"deadline": "2020-01-01T00:00:00Z"}, "deadline"),
        ({"deadline": "2099-01-01T00:00:00"}, "deadline"),
        ({"deadline": "2099-01-01T00:00:00Z", "completion_window": "1h"}, "body"),
        ({"max_failed": -1}, "max_failed"),
        ({"max_total_tokens": 0}, "max_total_tokens"),
    ],
)
def test_bad_limits_are_refused_by_name(client: TestClient, fields: dict[str, object], param: str) -> None:
    answer = client.post("/v1/batch/async", json={"prompts": ["ok"], **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, param), answer.text


def test_a_deadline_is_kept(client: TestClient) -> None:
    deadline = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    body = {"prompts": ["ok"], "deadline": deadline.isoformat(), "max_failed": 3, "max_total_tokens": 99}
    batch_id = client.post("/v1/batch/async", json=body).json()["batch_id"]
    found = client.get(f"/v1/batch/{batch_id}").json()
    assert datetime.fromisoformat(found["expires_at"]) == deadline
    assert (found["max_failed"], found["max_total_tokens"]) == (3, 99)


def test_a_window_is_refused_only_when_even_the_fast_end_misses_it(client: TestClient, store: Store) -> None:
    body = {"prompts": ["a", "b"], "max_tokens": 20, "completion_window": "10s"}
    assert client.post("/v1/batch/async", json=body).status_code == 202, "nothing is measured yet"
    measured_worker(store, step=1.0)
    stated = client.post("/v1/batch/estimate", json=body | {"priority": 5}).json()["finish"]["seconds"]
    assert stated["low"] < 20 < stated["high"]
    refused = client.post("/v1/batch/async", json=body | {"completion_window": f"{int(stated['low'])}s"})
    assert refused.status_code == 422
    error = refused.json()["error"]
    assert (error["param"], error["code"]) == ("completion_window", "deadline_unreachable")
    assert f"It takes about {ceil(stated['expected'])} s" in error["message"]
    # What may fit is accepted, however likely it is not to.
    soon = {"completion_window": f"{ceil(stated['low'])}s", "priority": 5}
    assert client.post("/v1/batch/async", json=body | soon).status_code == 202
    # What goes before it counts too, once it is more than the rows that are free.
    client.post("/v1/batch/async", json={"prompts": ["a"] * 400, "max_tokens": 50, "priority": 5})
    late = client.post("/v1/batch/async", json=body | {"completion_window": "60s"})
    assert late.json()["error"]["code"] == "deadline_unreachable"
    beside = client.post("/v1/batch/async", json=body | {"completion_window": "60s", "priority": 5})
    assert beside.status_code == 202, beside.text


def test_tries_are_readable_in_results(client: TestClient, store: Store) -> None:
    batch_id = submit(store, num_requests=2, shard_size=2)
    held(store, 1, lease=timedelta(0), worker="gpu@dead")
    with store.transaction() as session:
        leases.return_expired(session, 1, batch_id, max_attempts=2)
    claimed = held(store, 1, worker="gpu@drained")
    with store.transaction() as session:
        shards.release(session, claimed)
    run_to_the_end(store, held(store, 1))
    lines = client.get(f"/v1/batch/{batch_id}/results", headers={"accept": "application/x-ndjson"}).text
    for line in lines.splitlines():
        tries = json.loads(line)["attempts"]
        assert [(one["number"], one["worker"], one["cause"]) for one in tries] == [
            (1, "gpu@dead", "worker_lost"),
            (2, "gpu@drained", "handed_back"),
        ]


def test_a_cause_given_with_a_cancelled_result_is_kept(store: Store, client: TestClient) -> None:
    batch_id = submit(store, num_requests=1, shard_size=1)
    claimed = held(store, 1)
    own = result(claimed.requests[0].id, outcome=Outcome.CANCELLED)
    error = RequestError("request_cancelled", "why")
    from dataclasses import replace

    with store.transaction() as session:
        shards.save(session, [Progress(claimed, [replace(own, error=error)], 0, is_last=True)], lease=LEASE)
    (found,) = client.get(f"/v1/batch/{batch_id}/results").json()["data"]
    assert (found["error"]["code"], found["output"]) == ("request_cancelled", "text")


def test_the_answer_to_a_cancel_that_came_too_late_says_completed(client: TestClient, store: Store) -> None:
    batch_id = submit(store, num_requests=2, shard_size=2)
    claimed = held(store, 1)

    def save_once_it_stops() -> None:
        eventually(lambda: client.get(f"/v1/batch/{batch_id}").json()["status"] == "cancelling")
        run_to_the_end(store, claimed)

    with ThreadPoolExecutor(1) as pool:
        saving = pool.submit(save_once_it_stops)
        answers = [client.post(f"/v1/batch/{batch_id}/cancel").json()["status"]]
        saving.result(60)
        answers.append(client.post(f"/v1/batch/{batch_id}/cancel").json()["status"])
    assert answers in (["completed"] * 2, ["cancelling", "completed"]), (
        "the second only on a very slow machine"
    )
    assert client.get(f"/v1/batch/{batch_id}").json()["counts"]["cancelled"] == 0
