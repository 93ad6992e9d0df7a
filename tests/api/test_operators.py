"""Operators look at and control any tenant's batch; administrators manage keys and tenants over HTTP."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api import dependencies
from api.main import create_app
from tests.fixtures.access import bearer, make_key
from worker.contract.access import Scope
from worker.settings import Settings
from worker.store.database.session import Store
from worker.store.tenants import api_keys, audit

BATCH = {"prompts": ["one", "two"]}


@pytest.fixture
def client(store: Store, config: Settings) -> Iterator[TestClient]:  # noqa: ARG001 - empties the tables
    locked = config.model_copy(update={"auth": "keys"})
    with TestClient(create_app(locked), raise_server_exceptions=False) as client:
        yield client


def headers(store: Store, tenant: str, *scopes: Scope) -> dict[str, str]:
    return bearer(make_key(store, tenant, scopes=scopes))


def acts(store: Store, tenant: str) -> list[tuple[str, str]]:
    with store.of_tenant(tenant).transaction() as session:
        return [(entry.act, entry.target) for entry in reversed(audit.page(session))]


def test_an_operator_controls_any_tenants_batch_and_the_log_says_so(client: TestClient, store: Store) -> None:
    ours = headers(store, "ours", Scope.READ, Scope.SUBMIT)
    operator = headers(store, "default", Scope.DEPLOYMENT)
    batch_id = client.post("/v1/batch/async", headers=ours, json=BATCH).json()["batch_id"]
    path = f"/v1/batch/{batch_id}"
    seen = client.get(path, headers=operator).json()
    assert (seen["tenant"], seen["counts"]["total"]) == ("ours", 2)
    assert client.get(f"{path}/results", headers=operator).status_code == 200
    for act, status in (("pause", 200), ("resume", 200), ("requests/0/cancel", 200), ("cancel", 200)):
        assert client.post(f"{path}/{act}", headers=operator).status_code == status, act
    retried = client.post(f"{path}/retry?cancelled=1", headers=operator | {"Idempotency-Key": "k"}).json()
    assert client.get(f"/v1/batch/{retried['batch_id']}", headers=ours).json()["tenant"] == "ours"
    assert client.delete(path, headers=operator).status_code == 204
    assert client.get(path, headers=operator).status_code == 404
    acted = ("pause", "resume", "cancel_request", "cancel", "retry", "delete")
    assert acts(store, "ours") == [(f"batch.{act}", batch_id) for act in acted]


def test_an_operator_finds_batches_of_several_tenants_again(
    client: TestClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependencies, "MAX_OWNERS", 1)
    operator = headers(store, "default", Scope.DEPLOYMENT)
    tenants = {}
    for tenant in ("ours", "theirs"):
        own = headers(store, tenant, Scope.SUBMIT)
        tenants[client.post("/v1/batch/async", headers=own, json=BATCH).json()["batch_id"]] = tenant
    for batch_id, tenant in [*tenants.items()] * 2:
        for _ in range(2):
            assert client.get(f"/v1/batch/{batch_id}", headers=operator).json()["tenant"] == tenant


def test_what_a_tenant_does_to_its_own_batch_is_not_in_the_log(client: TestClient, store: Store) -> None:
    both = headers(store, "ours", Scope.READ, Scope.SUBMIT, Scope.DEPLOYMENT)
    batch_id = client.post("/v1/batch/async", headers=both, json=BATCH).json()["batch_id"]
    assert client.post(f"/v1/batch/{batch_id}/cancel", headers=both).status_code == 200
    assert acts(store, "ours") == []


@pytest.mark.parametrize("scopes", [(Scope.READ, Scope.SUBMIT, Scope.ADMIN), (Scope.READ, Scope.SUBMIT)])
def test_without_the_scope_another_tenants_batch_is_not_there(
    client: TestClient, store: Store, scopes: tuple[Scope, ...]
) -> None:
    ours, theirs = headers(store, "ours", Scope.SUBMIT), headers(store, "theirs", *scopes)
    batch_id = client.post("/v1/batch/async", headers=ours, json=BATCH).json()["batch_id"]
    for method, act in (
        ("GET", ""),
        ("GET", "/results"),
        ("GET", "/events"),
        ("POST", "/pause"),
        ("POST", "/cancel"),
        ("POST", "/retry"),
        ("DELETE", ""),
    ):
        answer = client.request(method, f"/v1/batch/{batch_id}{act}", headers=theirs)
        assert answer.status_code == 404, (method, act)
    for tenant in ("ours", "*"):
        refused = client.get("/v1/batch", headers=theirs, params={"tenant": tenant})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_scope")
    assert client.get("/v1/batch", headers=theirs, params={"tenant": "theirs"}).json()["data"] == []


def test_an_operator_lists_the_batches_of_one_tenant_or_of_all(client: TestClient, store: Store) -> None:
    operator = headers(store, "default", Scope.DEPLOYMENT)
    for tenant in ("a", "b"):
        submitted = client.post("/v1/batch/async", headers=headers(store, tenant, Scope.SUBMIT), json=BATCH)
        assert submitted.status_code == 202

    def tenants(**params: str) -> list[str]:
        page = client.get("/v1/batch", headers=operator, params=params)
        return [batch["tenant"] for batch in page.json()["data"]]

    assert (tenants(tenant="a"), tenants(tenant="*"), tenants(tenant="none")) == (["a"], ["b", "a"], [])
    stats = client.get("/v1/batch/stats", headers=operator, params={"tenant": "*"}).json()
    assert stats["pending"] == 2
    refused = client.get("/v1/batch", headers=operator)
    assert "`read`" in refused.json()["error"]["message"], "it has no batches of its own to read"


def make(client: TestClient, by: dict[str, str], **body: Any) -> Any:
    return client.post("/v1/keys", headers=by, json={"name": "a test", **body})


def test_an_administrator_manages_the_keys_of_its_tenant(client: TestClient, store: Store) -> None:
    admin = headers(store, "ours", Scope.ADMIN)
    made = make(client, admin, scopes=["submit", "read"], expires_in_seconds=3600)
    assert made.status_code == 201, made.text
    key = made.json()
    assert (key["tenant"], key["scopes"], key["expires_at"] is None) == ("ours", ["read", "submit"], False)
    assert client.get("/v1/batch", headers=bearer(key["key"])).status_code == 200
    path = f"/v1/keys/{key['prefix']}"
    rotated = client.post(f"{path}/rotate", headers=admin, json={"overlap_seconds": 0}).json()
    assert rotated["scopes"] == ["read", "submit"]
    assert client.get("/v1/batch", headers=bearer(key["key"])).status_code == 401
    assert client.delete(f"/v1/keys/{rotated['prefix']}", headers=admin).status_code == 204
    assert client.get("/v1/batch", headers=bearer(rotated["key"])).status_code == 401
    listed = client.get("/v1/keys", headers=admin).json()["data"]
    assert [one["revoked_at"] is not None for one in listed] == [False, False, True]
    assert key["key"] not in str(listed)
    assert acts(store, "ours") == [
        ("key.create", key["prefix"]),
        ("key.rotate", key["prefix"]),
        ("key.revoke", rotated["prefix"]),
    ]


def test_an_administrator_of_a_tenant_reaches_no_further(client: TestClient, store: Store) -> None:
    """Else it could make itself an operator, or take over an operator's key of the same tenant."""
    admin = headers(store, "default", Scope.ADMIN)
    operators = api_keys.prefix_of(make_key(store, "default", scopes=(Scope.DEPLOYMENT,)))
    theirs = api_keys.prefix_of(make_key(store, "theirs"))
    for refused in (
        make(client, admin, scopes=["deployment"]),
        make(client, admin, tenant="theirs"),
        client.get("/v1/keys", headers=admin, params={"tenant": "theirs"}),
        client.post(f"/v1/keys/{operators}/rotate", headers=admin),
        client.delete(f"/v1/keys/{operators}", headers=admin),
        client.patch("/v1/tenants/default", headers=admin, json={"weight": 9}),
    ):
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_scope")
    for missing in (
        client.post(f"/v1/keys/{theirs}/rotate", headers=admin),
        client.delete(f"/v1/keys/{theirs}", headers=admin),
        client.get("/v1/tenants/theirs", headers=admin),
    ):
        assert missing.status_code == 404, missing.text
    assert [one["id"] for one in client.get("/v1/tenants", headers=admin).json()["data"]] == ["default"]
    for scope in (Scope.READ, Scope.SUBMIT):
        assert make(client, headers(store, "default", scope)).status_code == 403
        assert client.get("/v1/tenants", headers=headers(store, "default", scope)).status_code == 403


def test_an_operator_manages_all_keys_and_tenants(client: TestClient, store: Store) -> None:
    operator = headers(store, "default", Scope.DEPLOYMENT)
    changed = client.patch("/v1/tenants/acme", headers=operator, json={"weight": 3, "max_batches": 1})
    assert (changed.status_code, changed.json()["weight"], changed.json()["max_tokens"]) == (200, 3, None)
    key = make(client, operator, tenant="acme", scopes=["submit"]).json()["key"]
    statuses = [client.post("/v1/batch/async", headers=bearer(key), json=BATCH).status_code for _ in range(2)]
    assert statuses == [202, 429], "the quota holds"
    client.patch("/v1/tenants/acme", headers=operator, json={"max_batches": None})
    assert client.post("/v1/batch/async", headers=bearer(key), json=BATCH).status_code == 202
    assert client.get("/v1/tenants/acme", headers=operator).json()["weight"] == 3, "what was left out stays"
    assert [act for act, _ in acts(store, "acme")] == [
        "tenant.create",
        "tenant.set",
        "key.create",
        "tenant.set",
    ]
    assert {"acme", "default"} <= {
        one["tenant"] for one in client.get("/v1/keys", headers=operator).json()["data"]
    }


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/tenants/acme", {}, "body"),
        ("/v1/tenants/acme", {"weight": 0}, "weight"),
        ("/v1/tenants/acme", {"max_batches": 0}, "max_batches"),
        ("/v1/tenants/acme", {"weights": 1}, "weights"),
        ("/v1/tenants/Not%20A%20Name", {"weight": 1}, "tenant"),
    ],
)
def test_a_wrong_change_of_a_tenant_is_refused(
    client: TestClient, store: Store, path: str, body: dict[str, int], param: str
) -> None:
    answer = client.patch(path, headers=headers(store, "default", Scope.DEPLOYMENT), json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, param)
    assert acts(store, "acme") == []
