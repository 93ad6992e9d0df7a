"""Keys at the door: who gets in, to what, and that no tenant sees another's work."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import anyio
import pytest
from fastapi.testclient import TestClient

from api.errors import AuthenticationError
from api.guards.strangers import STRANGER_BYTES, StrangersBodies
from api.main import create_app
from tests.fixtures.access import bearer, make_key
from tests.fixtures.batches import submit
from worker.contract.access import Scope
from worker.settings import Settings
from worker.store.database.session import Store
from worker.store.tenants import api_keys

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


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:8000", 200),
        ("http://localhost", 200),
        ("https://evil.example", 403),
        ("http://evil.example:8000", 403),
        ("null", 403),
    ],
)
def test_without_keys_a_strangers_web_page_sends_nothing(
    store: Store,  # noqa: ARG001 - empties the tables
    config: Settings,
    origin: str,
    status: int,
) -> None:
    """A form may go to any address, a file among its fields; the browser tells where it comes from."""
    with TestClient(create_app(config.model_copy(update={"auth": "off"}))) as client:
        headers = {"host": "127.0.0.1:8000", "origin": origin}
        assert client.get("/v1/batch/stats", headers=headers).status_code == status


def test_a_strangers_long_body_is_not_read(client: TestClient, store: Store) -> None:
    """What it holds would be built in memory before anybody asks for a key."""
    body = json.dumps(BATCH).encode() + b" " * 200_000
    read = []

    def pieces() -> Iterator[dict[str, Any]]:
        for start in range(0, len(body), 10_000):
            read.append(start)
            yield {"type": "http.request", "body": body[start : start + 10_000], "more_body": True}

    async def application(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
        while True:
            await receive()

    for headers in ([], [(b"authorization", b"Bearer hr_0_0")]):
        read.clear()
        coming = pieces()

        async def receive(coming: Iterator[dict[str, Any]] = coming) -> dict[str, Any]:
            return next(coming)

        scope = {"type": "http", "headers": headers}
        with pytest.raises(AuthenticationError):
            anyio.run(StrangersBodies(application, store=store), scope, receive, receive)
        assert len(read) == STRANGER_BYTES // 10_000 + 1
    answer = client.post("/v1/batch/async", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
    known = {**bearer(make_key(store)), "content-type": "application/json"}
    assert client.post("/v1/batch/async", content=body, headers=known).status_code == 202


def test_calls_over_the_limit_are_told_when_to_come_again(client: TestClient, store: Store) -> None:
    limited = bearer(make_key(store, f"limited-{uuid4().hex}", calls_per_minute=3))
    other = bearer(make_key(store, "other"))
    statuses = [client.get("/v1/batch/stats", headers=limited).status_code for _ in range(5)]
    assert statuses == [200, 200, 200, 429, 429]
    refused = client.get("/v1/batch/stats", headers=limited)
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert client.get("/v1/batch/stats", headers=other).status_code == 200


def test_without_redis_calls_are_not_limited(
    store: Store, config: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    away = config.model_copy(update={"auth": "keys", "redis_url": "redis://127.0.0.1:1/0"})
    limited = bearer(make_key(store, calls_per_minute=1))
    with TestClient(create_app(away)) as client:
        statuses = {client.get("/v1/batch/stats", headers=limited).status_code for _ in range(3)}
    assert statuses == {200}
    assert "calls are not limited" in caplog.text


@pytest.mark.parametrize("quota", ["max_batches", "max_requests", "max_tokens", "max_bytes"])
def test_a_batch_over_a_quota_is_refused_whole(client: TestClient, store: Store, quota: str) -> None:
    body = BATCH | {"max_tokens": 5}
    used = {"max_batches": 1, "max_requests": 2, "max_tokens": 16, "max_bytes": 6}
    key = bearer(make_key(store, "small", **{quota: used[quota] + used[quota] // 2}))
    free = bearer(make_key(store, "free"))
    accepted = client.post("/v1/batch/async", headers=key, json=body)
    assert accepted.status_code == 202
    refused = client.post("/v1/batch/async", headers=key, json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, f"quota_{quota}")
    assert int(refused.headers["retry-after"]) > 0
    assert client.get("/v1/batch/stats", headers=key).json()["total_batches"] == 1
    assert client.post("/v1/batch/async", headers=free, json=body).status_code == 202
    client.post(f"/v1/batch/{accepted.json()['batch_id']}/cancel", headers=key)
    again = client.post("/v1/batch/async", headers=key, json=body)
    assert again.status_code == (429 if quota == "max_bytes" else 202), "what is stored stays stored"


def test_what_can_never_fit_is_not_worth_a_retry(client: TestClient, store: Store) -> None:
    key = bearer(make_key(store, "small", max_requests=1))
    refused = client.post("/v1/batch/async", headers=key, json=BATCH)
    assert (refused.status_code, refused.headers["x-should-retry"]) == (429, "false")
    assert "retry-after" not in refused.headers


def test_two_batches_at_once_do_not_share_the_last_room(client: TestClient, store: Store) -> None:
    key = bearer(make_key(store, "small", max_batches=3))
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda _: client.post("/v1/batch/async", headers=key, json=BATCH), range(8))
        statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [202] * 3 + [429] * 5
