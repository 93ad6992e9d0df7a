"""Who administers a tenant sees nothing of another; who administers the deployment sees all."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import insert

from api.main import create_app
from tests.fixtures.access import bearer, make_key
from worker.contract.access import Scope
from worker.contract.messages import CALLBACKS_QUEUE, GPU_QUEUE
from worker.settings import Settings
from worker.store.cache import response_cache
from worker.store.database.session import Store
from worker.store.rows.schema import cache_tables
from worker.store.tenants import audit
from worker.store.watching import workers

ENDPOINTS = "/v1/webhooks/endpoints"
OURS = {"url": "https://ours.example/hook"}


@pytest.fixture
def client(store: Store, config: Settings) -> Iterator[TestClient]:  # noqa: ARG001 - empties the tables
    locked = config.model_copy(update={"auth": "keys"})
    with TestClient(create_app(locked), raise_server_exceptions=False) as client:
        yield client


def admin(store: Store, tenant: str) -> dict[str, str]:
    return bearer(make_key(store, tenant, scopes=(Scope.READ, Scope.SUBMIT, Scope.ADMIN)))


def operator(store: Store) -> dict[str, str]:
    return bearer(make_key(store, "default", scopes=(Scope.DEPLOYMENT,)))


def fill_cache(store: Store, *tenants: str) -> None:
    expires_at = datetime.now(UTC) + timedelta(days=1)
    rows = [
        {"key": t.encode(), "group": b"", "payload": {}, "tenant_id": t, "expires_at": expires_at}
        for t in tenants
    ]
    with store.transaction() as session:
        session.execute(insert(cache_tables.CachedResponseRow), rows)


def entries(store: Store, tenant: str) -> int:
    with store.of_tenant(tenant).transaction() as session:
        return response_cache.size(session).num_entries


def test_a_tenant_registers_its_own_endpoints_and_touches_no_others(client: TestClient, store: Store) -> None:
    ours, theirs = admin(store, "ours"), admin(store, "theirs")
    made = client.post(ENDPOINTS, headers=ours, json=OURS)
    assert made.status_code == 201, made.text
    path = f"{ENDPOINTS}/{made.json()['id']}"
    for method, url, body in (
        ("GET", path, None),
        ("PATCH", path, {"enabled": False}),
        ("DELETE", path, None),
        ("POST", f"{path}/rotate", None),
        ("POST", f"{path}/ping", None),
        ("POST", f"{path}/replay", None),
    ):
        assert client.request(method, url, headers=theirs, json=body).status_code == 404, (method, url)
    assert client.get(ENDPOINTS, headers=theirs).json()["data"] == []
    (kept,) = client.get(ENDPOINTS, headers=ours).json()["data"]
    assert (kept["url"], kept["enabled"]) == (OURS["url"], True)
    assert client.get("/v1/webhooks/events", headers=theirs).json()["data"] == []


def test_the_audit_log_of_a_tenant_is_about_itself(client: TestClient, store: Store) -> None:
    with store.transaction() as session:
        for tenant in ("ours", "theirs", ""):
            audit.record(session, "shell:me", "key.create", f"hr_{tenant}", {}, tenant_id=tenant)

    def read(headers: dict[str, str]) -> list[tuple[str, str]]:
        data = client.get("/v1/audit", headers=headers).json()["data"]
        return [(entry["tenant"], entry["target"]) for entry in data]

    assert read(admin(store, "ours")) == [("ours", "hr_ours")]
    assert read(admin(store, "theirs")) == [("theirs", "hr_theirs")]
    assert read(admin(store, "default")) == []
    assert read(operator(store)) == [("", "hr_"), ("theirs", "hr_theirs"), ("ours", "hr_ours")]


def test_a_tenant_empties_its_own_cache(client: TestClient, store: Store) -> None:
    fill_cache(store, "ours", "theirs", "default")
    cleared = client.delete("/v1/cache", headers=admin(store, "ours"))
    assert cleared.json() == {"entries_removed": 1, "workers": None}
    assert [entries(store, tenant) for tenant in ("ours", "theirs", "default")] == [0, 1, 1]
    cleared = client.delete("/v1/cache", headers=operator(store), params={"kind": "response"})
    assert cleared.json() == {"entries_removed": 2, "workers": None}


def test_prefix_caches_are_the_operators_to_clear(client: TestClient, store: Store) -> None:
    fill_cache(store, "ours")
    with store.transaction() as session:
        for name, queue in (("gpu@a", GPU_QUEUE), ("gpu@b", GPU_QUEUE), ("callbacks@a", CALLBACKS_QUEUE)):
            workers.seen(session, name=name, queue=queue, slots=1, info={})
    refused = client.delete("/v1/cache", headers=admin(store, "ours"), params={"kind": "prefix"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_scope")
    with store.transaction() as session:
        assert not workers.must_clear_cache(session, "gpu@a")
    for _ in range(2):  # the same again does the same
        cleared = client.delete("/v1/cache", headers=operator(store), params={"kind": "prefix"})
        assert cleared.json() == {"entries_removed": None, "workers": 2}
    assert entries(store, "ours") == 1
    with store.transaction() as session:
        assert [workers.must_clear_cache(session, name) for name in ("gpu@a", "gpu@b", "gpu@a")] == [1, 1, 0]
    assert client.delete("/v1/cache", headers=operator(store), params={"kind": "all"}).status_code == 422
    acts = client.get("/v1/audit", headers=operator(store)).json()["data"]
    assert [(act["act"], act["target"], act["details"]["workers"]) for act in acts] == [
        ("cache.clear", "prefix", 2)
    ] * 2
    assert acts[0]["actor"].startswith("key:hr_")


def test_what_is_of_all_tenants_needs_the_scope_for_that(client: TestClient, store: Store) -> None:
    tenant, deployment = admin(store, "default"), operator(store)
    for path in ("/v1/overview", "/metrics", "/v1/metrics", "/v1/cache/stats", "/v1/usage/tenants"):
        refused = client.get(path, headers=tenant)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_scope"), path
        assert "`deployment`" in refused.json()["error"]["message"]
        assert client.get(path, headers=deployment).status_code == 200, path
    reader = bearer(make_key(store, "ours"))
    for method, path in (("GET", "/v1/audit"), ("DELETE", "/v1/cache"), ("POST", ENDPOINTS)):
        answer = client.request(method, path, headers=reader, json=OURS if method == "POST" else None)
        assert answer.status_code == 403, path
    assert client.post(ENDPOINTS, headers=deployment, json=OURS).status_code == 403, "none implies another"
