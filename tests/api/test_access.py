"""Keys at the door: who gets in, to what, and that no tenant sees another's work."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from api.main import create_app
from tests.fixtures.access import bearer, make_key
from tests.fixtures.batches import submit
from worker.contract.access import Scope
from worker.settings import Settings
from worker.store import api_keys
from worker.store.session import Store

BATCH = {"prompts": ["one", "two"]}


@pytest.fixture
def client(store: Store, config: Settings) -> Iterator[TestClient]:  # noqa: ARG001 - empties the tables
    locked = config.model_copy(update={"auth": "keys"})
    with TestClient(create_app(locked), raise_server_exceptions=False) as client:
        yield client


def test_without_a_good_key_nobody_gets_in(client: TestClient, store: Store) -> None:
    revoked = make_key(store)
    with store.transaction() as session:
        api_keys.revoke(session, api_keys.prefix_of(revoked))
    for headers in ({}, bearer("nonsense"), bearer(revoked), {"Authorization": "Basic aHI6aHI="}):
        for method, path in (("POST", "/v1/batch/async"), ("GET", "/v1/batch/stats"), ("GET", "/v1/batch/x")):
            answer = client.request(method, path, headers=headers, json=BATCH if method == "POST" else None)
            assert answer.status_code == 401, (headers, path)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["type"] == "authentication_error"
    assert client.get("/health").status_code == 200
    assert client.get("/ready").status_code == 503


def test_a_scope_that_is_missing_is_named(client: TestClient, store: Store) -> None:
    reader = bearer(make_key(store, scopes=(Scope.READ,)))
    answer = client.post("/v1/batch/async", headers=reader, json=BATCH)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_scope")
    assert "`submit`" in answer.json()["error"]["message"]
    assert client.get("/v1/batch/stats", headers=reader).status_code == 200
    writer = bearer(make_key(store, scopes=(Scope.SUBMIT,)))
    assert client.post("/v1/batch/async", headers=writer, json=BATCH).status_code == 202
    assert client.get("/v1/batch/stats", headers=writer).status_code == 403


def test_tenants_neither_see_nor_count_each_others_work(client: TestClient, store: Store) -> None:
    ours, theirs = bearer(make_key(store, "ours")), bearer(make_key(store, "theirs"))
    batch_id = client.post("/v1/batch/async", headers=ours, json=BATCH).json()["batch_id"]
    for method, path in (
        ("GET", f"/v1/batch/{batch_id}"),
        ("GET", f"/v1/batch/{batch_id}/results"),
        ("GET", f"/v1/batch/{batch_id}/results?follow=1"),
        ("POST", f"/v1/batch/{batch_id}/cancel"),
    ):
        answer = client.request(method, path, headers=theirs)
        missing = client.request(method, path.replace(batch_id, "batch_none"), headers=theirs)
        assert answer.status_code == missing.status_code == 404, path
        assert answer.text.replace(batch_id, "batch_none") == missing.text
    assert client.get("/v1/batch/stats", headers=theirs).json()["total_batches"] == 0
    assert client.get("/v1/batch/stats", headers=ours).json()["pending"] == 1
    assert client.get(f"/v1/batch/{batch_id}", headers=ours).json()["status"] == "pending"


def test_an_idempotency_key_is_its_tenants_own(client: TestClient, store: Store) -> None:
    ids = set()
    for tenant in ("ours", "theirs"):
        headers = bearer(make_key(store, tenant)) | {"Idempotency-Key": "same"}
        made = [
            client.post("/v1/batch/async", headers=headers, json=BATCH).json()["batch_id"] for _ in range(2)
        ]
        assert made[0] == made[1]
        ids.add(made[0])
    assert len(ids) == 2


def test_work_of_a_deployment_without_keys_is_the_default_tenants(client: TestClient, store: Store) -> None:
    batch_id = submit(store)
    assert client.get(f"/v1/batch/{batch_id}", headers=bearer(make_key(store, "default"))).status_code == 200
    assert client.get(f"/v1/batch/{batch_id}", headers=bearer(make_key(store, "acme"))).status_code == 404


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200),
        ("localhost", 200),
        ("[::1]:8000", 200),
        ("127.5.5.5", 200),
        ("web:8000", 200),
        ("evil.example:8000", 403),
        ("10.1.2.3", 403),
        ("localhost.evil.example", 403),
    ],
)
def test_without_keys_a_strangers_web_page_gets_nothing(
    store: Store,  # noqa: ARG001 - empties the tables
    config: Settings,
    host: str,
    status: int,
) -> None:
    """A page whose name means 127.0.0.1 is read by the browser as if it came from there."""
    with TestClient(create_app(config.model_copy(update={"auth": "off"}))) as client:
        assert client.get("/v1/batch/stats", headers={"host": host}).status_code == status
