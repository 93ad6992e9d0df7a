"""Lists in pages: a page goes on after a row, or the client learns that there is no such row."""

from uuid import uuid4

import pytest
from fastapi.testclient import TestClient

from tests.fixtures.batches import submit
from worker.store.database.session import Store
from worker.store.files import files
from worker.store.tenants import audit

LISTS = ["/v1/batch", "/v1/batches", "/v1/files", "/v1/webhooks/endpoints", "/v1/webhooks/events"]


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize("filters", ["", "&limit=1"])
def test_an_unknown_cursor_has_one_answer_everywhere(client: TestClient, path: str, filters: str) -> None:
    """An empty page would end a client's loop as if it had read everything."""
    answer = client.get(f"{path}?after=nothing_of_ours{filters}")
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (404, "not_found_error", "unknown_cursor")
    assert (error["param"], "nothing_of_ours" in error["message"]) == ("after", True)


def test_the_answer_is_documented(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert all("404" in paths[path]["get"]["responses"] for path in LISTS)


def test_a_row_of_another_tenant_is_no_cursor(client: TestClient, store: Store) -> None:
    theirs = store.of_tenant("theirs")
    batch_id = submit(theirs)
    with theirs.transaction() as session:
        new = files.NewFile(purpose="batch", filename="f", sha256=uuid4().hex, num_bytes=1)
        file_id = files.add(session, new).id
    for path, row_id in (("/v1/batch", batch_id), ("/v1/files", file_id)):
        assert client.get(path, params={"after": row_id}).json()["error"]["code"] == "unknown_cursor"


def test_a_row_that_a_filter_now_leaves_out_is_a_cursor(client: TestClient, store: Store) -> None:
    """Batches move on while a client reads the list of the pending ones."""
    old, new = submit(store), submit(store)
    client.post(f"/v1/batch/{new}/cancel")
    page = client.get("/v1/batch", params={"after": new, "status": "pending"}).json()
    assert [batch["batch_id"] for batch in page["data"]] == [old]


def test_the_page_with_the_oldest_entry_of_the_audit_log_is_the_last(
    client: TestClient, store: Store
) -> None:
    with store.transaction() as session:
        for number in range(4):
            audit.record(session, "shell:me", "key.revoke", f"hr_{number}", {}, tenant_id="default")
    first = client.get("/v1/audit?limit=2").json()
    last = client.get("/v1/audit", params={"limit": 2, "before": first["next"]}).json()
    assert [len(page["data"]) for page in (first, last)] == [2, 2]
    assert last["next"] is None
