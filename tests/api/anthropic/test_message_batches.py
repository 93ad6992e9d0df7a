import json
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from api.main import create_app
from tests.fixtures.access import bearer, make_key
from tests.fixtures.batches import LEASE, held, result, run_to_the_end
from tests.fixtures.batches import submit as submit_plain
from tests.fixtures.measured import measured_worker
from worker.settings import Settings
from worker.store.batches import batches
from worker.store.database.session import Store
from worker.store.shards import shards
from worker.store.shards.shards import Progress
from worker.values.outcomes import Outcome
from worker.values.results import RequestError

BATCHES = "/v1/messages/batches"


def sql(store: Store, query: str) -> list[tuple[Any, ...]]:
    with store.transaction() as session:
        return [tuple(row) for row in session.execute(text(query))]


def submission(client: TestClient, count: int = 3, **changes: Any) -> dict[str, Any]:
    model = client.get("/v1/models").json()["data"][0]["id"]
    params = {"model": model, "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}
    requests = [{"custom_id": f"row-{i}", "params": params | {"temperature": i / 10}} for i in range(count)]
    return {"requests": requests} | changes


def create(client: TestClient, count: int = 3, **changes: Any) -> dict[str, Any]:
    answer = client.post(BATCHES, json=submission(client, count, **changes))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def results(client: TestClient, batch: dict[str, Any]) -> dict[str, Any]:
    answer = client.get(batch["results_url"])
    assert answer.headers["content-type"].startswith("application/x-jsonl")
    lines = [json.loads(line) for line in answer.text.splitlines()]
    return {line["custom_id"]: line["result"] for line in lines}


def test_a_batch_from_its_creation_to_its_results(client: TestClient, store: Store) -> None:
    batch = create(client, callback_url="https://example.com/hook")
    assert (batch["type"], batch["processing_status"]) == ("message_batch", "in_progress")
    assert batch["request_counts"] == {
        "processing": 3, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0,
    }  # fmt: skip
    assert (batch["ended_at"], batch["results_url"], batch["archived_at"]) == (None, None, None)
    assert sql(store, "SELECT expires_at - created_at = interval '24 hours' FROM batches") == [(True,)]
    rows = sql(store, "SELECT custom_id, prompt, max_tokens FROM requests ORDER BY position")
    assert rows == [(f"row-{i}", "<user>hello<assistant>", 5) for i in range(3)]
    early = client.get(f"{BATCHES}/{batch['id']}/results")
    assert (early.status_code, early.json()["error"]["type"]) == (409, "conflict_error")
    assert client.delete(f"{BATCHES}/{batch['id']}").status_code == 409
    run_to_the_end(store, held(store, 1))
    failing = held(store, 2)
    failed = replace(
        result(failing.requests[0].id, outcome=Outcome.FAILED),
        output=None,
        error=RequestError("generation_failed", "the grammar has no way on"),
    )
    with store.transaction() as session:
        shards.save(session, [Progress(failing, [failed], running_tokens=0, is_last=True)], lease=LEASE)
    ended = client.get(f"{BATCHES}/{batch['id']}").json()
    assert ended["processing_status"] == "ended"
    assert (ended["request_counts"]["succeeded"], ended["request_counts"]["errored"]) == (2, 1)
    assert ended["ended_at"] is not None
    found = results(client, ended)
    message = found["row-0"]["message"]
    assert found["row-0"]["type"] == "succeeded"
    assert message["content"] == [{"type": "text", "text": "out <user>hello<assistant>", "citations": None}]
    assert (message["role"], message["stop_reason"], message["stop_sequence"]) == (
        "assistant", "end_turn", None,
    )  # fmt: skip
    assert message["usage"] == {
        "input_tokens": 2,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 1,
        "output_tokens": 7,
    }
    assert found["row-2"] == {
        "type": "errored",
        "error": {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "the grammar has no way on",
                "param": None,
                "code": "generation_failed",
            },
            "request_id": None,
        },
    }
    assert sql(store, "SELECT type FROM webhook_events") == [("batch.completed",)]
    assert client.get(f"/v1/batch/{batch['id']}").json()["status"] == "completed"
    deleted = client.delete(f"{BATCHES}/{batch['id']}")
    assert deleted.json() == {"id": batch["id"], "type": "message_batch_deleted"}
    assert client.get(f"{BATCHES}/{batch['id']}").status_code == 404


@pytest.mark.parametrize(("how", "kind"), [("cancel", "canceled"), ("expire", "expired")])
def test_what_was_not_run_says_why(client: TestClient, store: Store, how: str, kind: str) -> None:
    batch = create(client)
    run_to_the_end(store, held(store, 1))
    if how == "cancel":
        answer = client.post(f"{BATCHES}/{batch['id']}/cancel").json()
        assert answer["cancel_initiated_at"] is not None
    else:
        sql(store, "UPDATE batches SET expires_at = now() - interval '1 s' RETURNING 1")
        with store.transaction() as session:
            batches.settle_stopping(session, limit=9)
    ended = client.get(f"{BATCHES}/{batch['id']}").json()
    assert ended["processing_status"] == "ended"
    assert (ended["request_counts"]["succeeded"], ended["request_counts"][kind]) == (2, 1)
    assert results(client, ended)["row-2"] == {"type": kind}


def test_pages_go_both_ways(client: TestClient, store: Store) -> None:
    submit_plain(store)  # of the plain API: not listed here
    ids = [create(client, 1)["id"] for _ in range(5)][::-1]

    def page(**params: Any) -> tuple[list[str], bool]:
        found = client.get(BATCHES, params=params).json()
        listed = [one["id"] for one in found["data"]]
        assert (found["first_id"], found["last_id"]) == ((listed or [None])[0], (listed or [None])[-1])
        return listed, found["has_more"]

    assert page() == (ids, False)
    assert page(limit=2) == (ids[:2], True)
    assert page(limit=2, after_id=ids[1]) == (ids[2:4], True)
    assert page(limit=2, after_id=ids[3]) == (ids[4:], False)
    assert page(limit=2, before_id=ids[4]) == (ids[2:4], True)
    assert page(limit=2, before_id=ids[2]) == (ids[:2], False)
    assert page(before_id=ids[0]) == ([], False)
    unknown = client.get(BATCHES, params={"before_id": "batch_none"})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "before_id")
    both = client.get(BATCHES, params={"before_id": ids[0], "after_id": ids[0]})
    assert both.status_code == 400


def test_a_retry_makes_no_second_batch_and_a_second_submission_does(client: TestClient) -> None:
    body = submission(client)
    first = client.post(BATCHES, json=body).json()["id"]
    retried = client.post(BATCHES, json=body, headers={"x-stainless-retry-count": "1"})
    assert retried.json()["id"] == first
    again = client.post(BATCHES, json=body).json()["id"]
    assert again != first
    retried = client.post(BATCHES, json=body, headers={"x-stainless-retry-count": "2"})
    assert retried.json()["id"] == again
    other = client.post(BATCHES, json=submission(client, 2), headers={"x-stainless-retry-count": "1"})
    assert other.json()["id"] not in {first, again}
    named = [client.post(BATCHES, json=body, headers={"Idempotency-Key": "k"}).json()["id"] for _ in range(2)]
    assert len(set(named)) == 1


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"custom_id": "row-0"}, "requests[1].custom_id"),
        ({"custom_id": "no spaces"}, "requests[1].custom_id"),
        ({"params": "hello"}, "requests[1].params"),
        ({"more": 1}, "requests[1].more"),
    ],
)
def test_a_malformed_request_is_named_and_nothing_is_stored(
    client: TestClient, store: Store, change: dict[str, Any], param: str
) -> None:
    body = submission(client)
    ((name, value),) = change.items()
    body["requests"][1][name] = value
    answer = client.post(BATCHES, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert sql(store, "SELECT 1 FROM batches") == []


@pytest.mark.parametrize(
    ("params", "code", "said"),
    [
        ({"stream": True}, "invalid_value", "stream: must not be true"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens: "),
        ({"temperature": 9}, "out_of_range", "temperature: "),
        ({"messages": None}, "wrong_type", "messages: "),
        ({"unknown": 1}, "unknown_field", "unknown: "),
        ({"model": "claude-none"}, "model_not_found", "model: this server does not serve"),
        ({"messages": [{"role": "user", "content": "x" * 99}]}, "context_length_exceeded", "messages: "),
    ],
)
def test_a_wrong_message_fails_alone(
    client: TestClient, store: Store, params: dict[str, Any], code: str, said: str
) -> None:
    body = submission(client)
    body["requests"][1]["params"] |= params
    batch = client.post(BATCHES, json=body).json()
    counts = batch["request_counts"]
    assert (counts["processing"], counts["succeeded"], counts["errored"]) == (2, 0, 1)
    for (shard_id,) in sql(store, "SELECT id FROM shards WHERE state = 'ready' ORDER BY id"):
        run_to_the_end(store, held(store, shard_id))
    ended = client.get(f"{BATCHES}/{batch['id']}").json()
    assert ended["processing_status"] == "ended"
    found = results(client, ended)
    assert [found[f"row-{i}"]["type"] for i in range(3)] == ["succeeded", "errored", "succeeded"]
    error = found["row-1"]["error"]["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    assert error["message"].startswith(said)
    retried = client.post(f"/v1/batch/{batch['id']}/retry")
    assert retried.status_code == 409, "what is wrong stays wrong"


def test_a_batch_of_wrong_messages_ends_at_once(client: TestClient, store: Store) -> None:
    body = submission(client, callback_url="https://example.com/hook")
    for request in body["requests"]:
        request["params"] = {}
    batch = client.post(BATCHES, json=body).json()
    assert (batch["processing_status"], batch["request_counts"]["errored"]) == ("ended", 3)
    assert {one["type"] for one in results(client, batch).values()} == {"errored"}
    assert sql(store, "SELECT type FROM webhook_events") == [("batch.completed",)]


def test_forecasts_learn_nothing_from_a_batch_without_work(client: TestClient, store: Store) -> None:
    measured_worker(store)
    body = submission(client)
    for request in body["requests"]:
        request["params"] = {}
    assert client.post(BATCHES, json=body).status_code == 200
    assert sql(store, "SELECT forecast_seconds FROM batches") == [(0.0,)]
    assert create(client)["processing_status"] == "in_progress"


def test_other_batches_are_not_batches_of_messages(client: TestClient, store: Store) -> None:
    batch_id = submit_plain(store)
    for method, path in (("GET", ""), ("POST", "/cancel"), ("DELETE", ""), ("GET", "/results")):
        answer = client.request(method, f"{BATCHES}/{batch_id}{path}")
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error"), path
    assert sql(store, "SELECT status FROM batches") == [("pending",)]


def test_tenants_neither_see_nor_end_each_others_batches(store: Store, config: Settings) -> None:
    app = create_app(config.model_copy(update={"auth": "keys"}))
    with TestClient(app, raise_server_exceptions=False) as client:
        ours, theirs = bearer(make_key(store, "ours")), bearer(make_key(store, "theirs"))
        client.headers.update(ours)
        batch = create(client)
        for method, path in (("GET", ""), ("POST", "/cancel"), ("DELETE", ""), ("GET", "/results")):
            answer = client.request(method, f"{BATCHES}/{batch['id']}{path}", headers=theirs)
            assert answer.status_code == 404, path
        assert client.get(BATCHES, headers=theirs).json()["data"] == []
        assert client.get(BATCHES).json()["data"][0]["processing_status"] == "in_progress"
