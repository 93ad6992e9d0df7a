"""Batches that start later: durable at once, not claimed before their time."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.fixtures.batches import claim, submit
from worker.store.batches import starts
from worker.store.database.session import Store
from worker.store.shards import fair_share


def create(client: TestClient, **changes: Any) -> dict[str, Any]:
    answer = client.post("/v1/batch/async", json={"prompts": ["a", "b"], "start_after": 3600} | changes)
    assert answer.status_code == 202, answer.text
    return look(client, answer.json()["batch_id"])


def look(client: TestClient, batch_id: str) -> dict[str, Any]:
    return dict(client.get(f"/v1/batch/{batch_id}").json())


def the_time_comes(store: Store) -> None:
    with store.transaction() as session:
        session.execute(text("UPDATE batches SET start_after = now() - interval '1 second'"))


def start_due(store: Store) -> int:
    with store.transaction() as session:
        return starts.start_due(session, limit=10)


def test_a_batch_waits_for_its_time_and_says_so(client: TestClient, store: Store) -> None:
    batch = create(client)
    assert (batch["status"], batch["paused"], batch["waiting"]["reason"]) == ("pending", False, "scheduled")
    assert f"{batch['start_after'][:19]}Z" in batch["waiting"]["message"]
    assert batch["eta_seconds"] is None
    assert start_due(store) == 0
    assert claim(store, 1) is None
    with store.transaction() as session:
        assert not fair_share.next_of_each_tenant(session, limit=9, reissue_after=timedelta(0))
    the_time_comes(store)
    assert claim(store, 1) is None, "only the sweep lets it run"
    assert (start_due(store), start_due(store)) == (1, 0)
    started = look(client, batch["batch_id"])
    assert started["waiting"]["reason"] == "no_worker"
    assert started["start_after"] is not None
    assert claim(store, 1) is not None


def test_an_instant_is_taken_with_its_zone(client: TestClient) -> None:
    moment = (datetime.now(UTC) + timedelta(hours=3)).replace(microsecond=0)
    zoned = moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
    assert datetime.fromisoformat(create(client, start_after=zoned)["start_after"]) == moment


@pytest.mark.parametrize("past", [0, 0.0, "2020-01-01T00:00:00+02:00"])
def test_what_may_start_already_starts(client: TestClient, store: Store, past: Any) -> None:
    assert create(client, start_after=past)["waiting"]["reason"] == "no_worker"
    assert claim(store, 1) is not None


@pytest.mark.parametrize(
    "wrong", [-1, 31 * 86_400, "2026-11-22T12:00:00", "tomorrow", "9999-01-01T00:00:00Z", True, [], "nan"]
)
@pytest.mark.parametrize("path", ["/v1/batch/async", "/v1/batches"])
def test_a_wrong_start_is_refused(client: TestClient, path: str, wrong: Any) -> None:
    body: dict[str, Any] = {"prompts": ["a"]}
    if path == "/v1/batches":
        body = {"input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "1h"}
    answer = client.post(path, json=body | {"start_after": wrong})
    assert answer.status_code in {400, 422}
    assert answer.json()["error"]["param"] == "start_after"


def test_the_window_begins_with_the_start(client: TestClient, store: Store) -> None:
    batch = create(client, completion_window="30m")
    window = datetime.fromisoformat(batch["expires_at"]) - datetime.fromisoformat(batch["start_after"])
    assert window == timedelta(minutes=30)
    client.post(f"/v1/batch/{batch['batch_id']}/cancel")
    retried = client.post(f"/v1/batch/{batch['batch_id']}/retry?cancelled=true").json()["batch_id"]
    again = look(client, retried)
    window = datetime.fromisoformat(again["expires_at"]) - datetime.fromisoformat(again["created_at"])
    assert window == timedelta(minutes=30)
    assert again["start_after"] is None
    assert claim(store, 2) is not None, "a retry starts at once"


def test_a_deadline_before_the_start_is_refused(client: TestClient) -> None:
    deadline = (datetime.now(UTC) + timedelta(minutes=30)).isoformat()
    body = {"prompts": ["a"], "start_after": 3600, "deadline": deadline}
    answer = client.post("/v1/batch/async", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "deadline_past")


def test_it_can_be_started_at_once(client: TestClient, store: Store) -> None:
    batch_id = create(client)["batch_id"]
    resumed = client.post(f"/v1/batch/{batch_id}/resume").json()
    assert (resumed["start_after"], resumed["waiting"]["reason"]) == (None, "no_worker")
    assert claim(store, 1) is not None


def test_once_paused_it_waits_for_its_customer(client: TestClient, store: Store) -> None:
    batch_id = create(client)["batch_id"]
    paused = client.post(f"/v1/batch/{batch_id}/pause").json()
    assert (paused["paused"], paused["start_after"], paused["waiting"]["reason"]) == (True, None, "paused")
    client.post(f"/v1/batch/{batch_id}/resume")
    started = submit(store, start_after=datetime.now(UTC) - timedelta(hours=1))
    client.post(f"/v1/batch/{started}/pause")
    assert start_due(store) == 0, "the sweep does not undo a pause"


def test_a_cancelled_one_never_starts(client: TestClient, store: Store) -> None:
    batch_id = create(client)["batch_id"]
    assert client.post(f"/v1/batch/{batch_id}/cancel").json()["status"] == "cancelled"
    the_time_comes(store)
    assert start_due(store) == 0
    assert look(client, batch_id)["waiting"] is None
