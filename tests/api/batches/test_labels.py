"""Batches have names, and are found by them and by their metadata."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.fixtures.batches import LEASE, held, result, submit
from worker.store.database.session import Store
from worker.store.shards import shards
from worker.store.shards.shards import Progress
from worker.values.outcomes import Outcome


def ids(client: TestClient, query: str, *, path: str = "/v1/batch") -> list[str]:
    answer = client.get(f"{path}?{query}")
    assert answer.status_code == 200, answer.text
    return [one.get("batch_id") or one["id"] for one in answer.json()["data"]]


def test_a_name_is_given_shown_and_sent(client: TestClient, store: Store) -> None:
    body = {"prompts": ["a"], "name": "nightly", "callback_url": "https://example.com/hook"}
    batch_id = client.post("/v1/batch/async", json=body).json()["batch_id"]
    assert client.get(f"/v1/batch/{batch_id}").json()["name"] == "nightly"
    assert [one["name"] for one in client.get("/v1/batch").json()["data"]] == ["nightly"]
    assert client.get("/v1/overview").json()["batches"][0]["name"] == "nightly"
    claimed = held(store, 1)
    failed = [result(one.id, outcome=Outcome.FAILED) for one in claimed.requests]
    with store.transaction() as session:
        shards.save(session, [Progress(claimed, failed, 0, is_last=True)], lease=LEASE)
        body = session.scalars(text("SELECT body FROM webhook_events")).one()
    assert json.loads(body)["data"]["name"] == "nightly"
    retried = client.post(f"/v1/batch/{batch_id}/retry").json()["batch_id"]
    assert client.get(f"/v1/batch/{retried}").json()["name"] == "nightly"


def test_batches_are_found_by_name_and_metadata(client: TestClient, store: Store) -> None:
    a = submit(store, name="nightly", metadata={"set": "x", "run": "1"})
    b = submit(store, name="nightly", metadata={"set": "x", "run": "2"})
    c = submit(store, metadata={"set": "y", "k & [k]": "%"})
    assert ids(client, "name=nightly") == [b, a]
    assert ids(client, f"name=nightly&limit=1&after={b}") == [a]
    assert ids(client, "name=night") == []
    assert ids(client, "metadata[set]=x") == [b, a]
    assert ids(client, "metadata[set]=x&metadata[run]=1") == [a]
    assert ids(client, "metadata[set]=x&name=nightly&status=completed") == []
    assert ids(client, "metadata%5Bk%20%26%20%5Bk%5D%5D=%25") == [c]
    with store.transaction() as session:
        session.execute(text("UPDATE batches SET tenant_id = 'theirs' WHERE id = :id"), {"id": a})
    assert ids(client, "metadata[set]=x") == [b], "another tenant's is not found"


@pytest.mark.parametrize(
    "query",
    [
        "metadata=x", "metadata[a]=1&metadata[a]=2", f"metadata[{'k' * 65}]=1", f"metadata[a]={'v' * 513}",
        "metadata[a]=%00", "name=%00", f"name={'n' * 513}", "&".join(f"metadata[{i}]=1" for i in range(17)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/batch", "/v1/batches"])
def test_a_wrong_search_is_refused(client: TestClient, path: str, query: str) -> None:
    answer = client.get(f"{path}?{query}")
    assert answer.status_code in {400, 422}
    assert answer.json()["error"]["param"] in {"metadata", "name"}


@pytest.mark.parametrize("name", ["", "n" * 513, "\x00", 5])
def test_a_wrong_name_is_refused(client: TestClient, name: Any) -> None:
    answer = client.post("/v1/batch/async", json={"prompts": ["a"], "name": name})
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "name")
