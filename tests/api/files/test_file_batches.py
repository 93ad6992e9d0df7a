import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from httpx import Response
from sqlalchemy import text

from api import dependencies
from api.blobs.store import StorageError
from api.dependencies import Services
from api.files import reading
from api.files.reading import BatchReader
from api.files.writing import ResultWriter
from api.guards.auth import Caller
from tests.fixtures.batches import LEASE, held, result, run_to_the_end
from tests.fixtures.inputs import body, line, lines
from worker.contract.access import DEFAULT_TENANT, Scope
from worker.store.batches import batches
from worker.store.database.session import Store
from worker.store.files import batch_files
from worker.store.requests.requests import NewRequest
from worker.store.shards import shards
from worker.store.shards.shards import Progress
from worker.values.results import Payload

Put = Callable[..., Response]


def sql(store: Store, query: str) -> list[tuple[Any, ...]]:
    with store.transaction() as session:
        return [tuple(row) for row in session.execute(text(query))]


def look(client: TestClient, batch: dict[str, Any]) -> dict[str, Any]:
    found = client.get(f"/v1/batches/{batch['id']}").json()
    counts = found["request_counts"]
    assert counts["total"] == sum(count for name, count in counts.items() if name != "total")
    return dict(found)


def content(client: TestClient, file_id: str) -> list[dict[str, Any]]:
    return [json.loads(one) for one in client.get(f"/v1/files/{file_id}/content").text.splitlines()]


def test_a_batch_goes_through_its_states(
    client: TestClient, store: Store, reader: BatchReader, writer: ResultWriter, create: Any
) -> None:
    batch = create(lines(5), metadata={"a": "b"}, callback_url="https://example.com/hook")
    assert batch["status"] == "validating"
    assert (batch["request_counts"]["total"], batch["request_counts"]["pending"]) == (5, 5)
    assert not writer.turn()
    assert reader.turn()
    assert not reader.turn()
    assert look(client, batch)["status"] == "in_progress"
    rows = sql(store, "SELECT position, custom_id, prompt, max_tokens FROM requests ORDER BY position")
    assert rows == [(i, f"row-{i}", "one", 5) for i in range(5)]
    assert sql(store, "SELECT num_requests FROM shards ORDER BY position") == [(2,), (2,), (1,)]
    for shard_id in (2, 1, 3):
        run_to_the_end(store, held(store, shard_id))
    ended = look(client, batch)
    assert (ended["status"], ended["output_file_id"], ended["completed_at"]) == ("finalizing", None, None)
    assert client.get(f"/v1/batch/{batch['id']}").json()["status"] == "completed"  # results can be read
    assert sql(store, "SELECT * FROM webhook_events") == []
    assert writer.turn()
    assert not writer.turn()
    done = look(client, batch)
    assert (done["status"], done["error_file_id"]) == ("completed", None)
    found = content(client, done["output_file_id"])
    assert [one["custom_id"] for one in found] == ["row-2", "row-3", "row-0", "row-1", "row-4"]
    assert {one["response"]["status_code"] for one in found} == {200}
    assert found[0]["response"]["body"]["choices"][0]["text"] == "out one"
    assert len({one["id"] for one in found}) == 5
    assert sql(store, "SELECT type FROM webhook_events") == [("batch.completed",)]
    assert client.get("/v1/files", params={"purpose": "batch_output"}).json()["data"][0]["filename"] == (
        f"{batch['id']}_output.jsonl"
    )


def test_a_batch_cancelled_before_it_is_read_gives_every_line_its_result(
    client: TestClient, reader: BatchReader, writer: ResultWriter, create: Any
) -> None:
    batch = create(lines(7))
    assert client.post(f"/v1/batches/{batch['id']}/cancel").json()["status"] == "cancelling"
    reader.turn()
    assert look(client, batch)["status"] == "cancelling"
    writer.turn()
    done = look(client, batch)
    assert (done["status"], done["output_file_id"]) == ("cancelled", None)
    found = content(client, done["error_file_id"])
    assert sorted(one["custom_id"] for one in found) == [f"row-{i}" for i in range(7)]
    assert {(one["response"], one["error"]["code"]) for one in found} == {(None, "batch_cancelled")}


def test_reading_goes_on_where_it_was_left(
    client: TestClient, store: Store, reader: BatchReader, create: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK_LINES", 3)
    monkeypatch.setattr(reading, "TURN_LINES", 6)
    first, second = create(lines(20)), create(lines(4))
    reader.turn()
    assert look(client, first)["status"] == "validating"
    assert sql(store, f"SELECT num_unread FROM batches WHERE id = '{first['id']}'") == [(14,)]
    reader.turn()  # the other one has its turn
    assert look(client, second)["status"] == "in_progress"
    while reader.turn():
        pass
    query = f"SELECT custom_id FROM requests WHERE batch_id = '{first['id']}' ORDER BY position"
    assert sql(store, query) == [(f"row-{i}",) for i in range(20)]
    assert sql(store, f"SELECT sum(num_requests) FROM shards WHERE batch_id = '{first['id']}'") == [(20,)]


def test_chunks_grow_and_put_together_what_begins_alike(
    store: Store, reader: BatchReader, create: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK_LINES", 2)
    monkeypatch.setattr(reading, "MAX_CHUNK_LINES", 4)
    prompts = [f"{'abc'[i % 3] * 80} {i}" for i in range(14)]
    create(b"".join(line(f"row-{i}", body=body(prompt=prompt)) for i, prompt in enumerate(prompts)))
    while reader.turn():
        pass
    chunks = "SELECT count(*) FROM requests GROUP BY xmin ORDER BY min(position)"
    assert sql(store, chunks) == [(2,), (2,), (4,), (4,), (2,)]
    together = (
        "SELECT array_agg(position ORDER BY position) FROM requests GROUP BY shard_id ORDER BY shard_id"
    )
    assert [found for (found,) in sql(store, together)][2:4] == [[4, 7], [5, 6]]
    assert sql(store, "SELECT prompt FROM requests ORDER BY position") == [(prompt,) for prompt in prompts]


def test_a_chunk_of_long_lines_is_cut(
    store: Store, reader: BatchReader, create: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_CHUNK_BYTES", 1)
    create(lines(3))
    while reader.turn():
        pass
    assert sql(store, "SELECT count(*) FROM requests GROUP BY xmin") == [(1,)] * 3


def test_what_comes_again_in_another_chunk_is_run_once(
    client: TestClient, store: Store, reader: BatchReader, create: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK_LINES", 2)
    monkeypatch.setattr(reading, "TURN_LINES", 2)
    greedy = body(temperature=0)
    batch = create(b"".join(line(f"row-{i}", body=greedy) for i in range(7)))
    while reader.turn():
        pass
    assert sql(store, "SELECT num_requests FROM shards") == [(7,)]
    run_to_the_end(store, held(store, 1))
    assert look(client, batch)["request_counts"]["completed"] == 7
    assert client.get(f"/v1/batch/{batch['id']}").json()["deduplicated"] == 6
    assert reader._earlier == {}, "nothing is remembered of what has been read"


def test_a_reader_that_lost_its_claim_writes_nothing(store: Store, reader: BatchReader, create: Any) -> None:
    create(lines(4))
    served = reader.services.checkpoint.model
    with store.transaction() as session:
        stale = batch_files.claim_to_read(session, lease=timedelta(0), models=[served])
    assert stale is not None
    assert reader.turn()
    with store.transaction() as session:
        left = batch_files.add_requests(
            session, stale, [], read_offset=0, shard_size=2, lease=timedelta(seconds=1)
        )
        assert left is None
        assert not batch_files.finish(session, stale, batch_files.WrittenFiles("file-x", None))
    assert sql(store, "SELECT count(*) FROM requests") == [(4,)]


def test_a_renewal_that_comes_late_does_not_take_the_files_back(
    store: Store, writer: ResultWriter, create: Any
) -> None:
    batch = create(lines(1))
    lease, models = timedelta(seconds=60), [writer.services.checkpoint.model]
    with store.transaction() as session:
        held = batch_files.claim_to_read(session, lease=lease, models=models)
        assert held is not None
        batch_files.put_back(session, held)
        assert not batch_files.renew(session, held, lease=lease)
    with store.transaction() as session:
        again = batch_files.claim_to_read(session, lease=lease, models=models)
        assert again is not None
        batches.cancel(session, batch["id"])
        given = [NewRequest("a", max_tokens=1)]
        left = batch_files.add_requests(session, again, given, read_offset=9, shard_size=2, lease=lease)
        assert left == 0
        assert not batch_files.renew(session, again, lease=lease)
    assert writer.turn(), "its results can be written at once"


def test_a_file_for_another_endpoint_fails_by_line(
    client: TestClient, store: Store, reader: BatchReader, create: Any
) -> None:
    chat = {"model": "served", "messages": [{"role": "user", "content": "hi"}]}
    other = b"\n" + line("chat", url="/v1/chat/completions", body=chat)
    batch = create(other, callback_url="https://example.com/hook")
    reader.turn()
    failed = look(client, batch)
    assert (failed["status"], failed["request_counts"]["total"]) == ("failed", 0)
    assert [(one["line"], one["code"]) for one in failed["errors"]["data"]] == [(2, "mismatched_endpoint")]
    ((event,),) = sql(store, "SELECT body FROM webhook_events")
    assert json.loads(event)["type"] == "batch.failed"
    error = json.loads(event)["data"]["error"]
    assert (error["code"], error["message"].partition(":")[0]) == ("mismatched_endpoint", "line 2")
    assert client.get(f"/v1/batch/{batch['id']}").json()["error"] == error
    assert sql(store, "SELECT count(*) FROM requests") == [(0,)]


def test_every_line_for_another_endpoint_is_told(
    client: TestClient, reader: BatchReader, create: Any
) -> None:
    chat = {"model": "served", "messages": [{"role": "user", "content": "hi"}]}
    others = b"".join(line(f"c{i}", url="/v1/chat/completions", body=chat) for i in range(120))
    batch = create(others)
    reader.turn()
    errors = look(client, batch)["errors"]
    assert (errors["object"], [one["line"] for one in errors["data"]]) == ("list", list(range(1, 101)))
    assert {(one["code"], one["param"]) for one in errors["data"]} == {("mismatched_endpoint", "url")}


def test_an_input_file_can_be_deleted_once_it_is_read(
    client: TestClient, store: Store, reader: BatchReader, create: Any
) -> None:
    batch = create(lines(2))
    refused = client.delete(f"/v1/files/{batch['input_file_id']}")
    assert (refused.status_code, refused.headers["x-should-retry"]) == (409, "false")
    with store.transaction() as session:  # it may expire all the same
        session.execute(text("UPDATE files SET expires_at = now()"))
    reader.turn()
    assert look(client, batch)["errors"]["data"][0]["code"] == "file_not_found"
    other = create(lines(2))
    reader.turn()
    assert client.delete(f"/v1/files/{other['input_file_id']}").status_code == 200


def test_a_store_that_fails_delays_the_files_and_loses_nothing(
    client: TestClient,
    store: Store,
    services: Services,
    reader: BatchReader,
    writer: ResultWriter,
    create: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = create(lines(2))
    reader.turn()
    run_to_the_end(store, held(store, 1))
    with monkeypatch.context() as failing:

        def full(*_: object) -> None:
            raise StorageError("no space left")

        failing.setattr(services.blobs, "keep", full)
        assert writer.turn()
        assert not writer.turn()  # later
    assert look(client, batch)["status"] == "finalizing"
    sql_due = "UPDATE batch_files SET due_at = now() RETURNING stage"
    assert sql(store, sql_due) == [("running",)]
    writer.turn()
    assert look(client, batch)["status"] == "completed"


def test_a_client_that_tries_again_gets_the_batch_it_made(client: TestClient, put: Put, create: Any) -> None:
    file_id = put(lines(2)).json()["id"]
    again = {"x-stainless-retry-count": "1"}
    first = create(b"", input_file_id=file_id, metadata={"a": "b"})
    assert create(b"", input_file_id=file_id, metadata={"a": "b"}, headers=again)["id"] == first["id"]
    assert create(b"", input_file_id=file_id, metadata={"a": "c"}, headers=again)["id"] != first["id"]
    assert create(b"", input_file_id=file_id, completion_window="1h", headers=again)["id"] != first["id"]
    assert create(b"", input_file_id=file_id, metadata={"a": "b"})["id"] != first["id"]
    key = {"Idempotency-Key": "k"}
    keyed = create(b"", input_file_id=file_id, headers=key)
    assert create(b"", input_file_id=file_id, headers=key | again)["id"] == keyed["id"]
    other = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "2h"}
    assert client.post("/v1/batches", json=other, headers=key).status_code in {400, 422}


@pytest.mark.parametrize(
    ("changes", "status", "param"),
    [
        ({"input_file_id": "file-none"}, 404, "input_file_id"),
        ({"endpoint": "/v1/images"}, 400, "endpoint"),
        ({"completion_window": "soon"}, 400, "completion_window"),
        ({"metadata": {"a": 1}}, 400, "metadata.a"),
        ({"callback_url": "ftp://x"}, 400, "callback_url"),
        ({"unknown": 1}, 400, "unknown"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 1}},
            400,
            "output_expires_after.seconds",
        ),
    ],
)
def test_wrong_submissions_are_refused_by_name(
    client: TestClient, put: Put, changes: dict[str, Any], status: int, param: str
) -> None:
    request = {"input_file_id": put(lines(1)).json()["id"], "endpoint": "/v1/completions"}
    answer = client.post("/v1/batches", json=request | {"completion_window": "1h"} | changes)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text


def test_lists_hold_batches_made_from_files_only(client: TestClient, create: Any) -> None:
    made = [create(lines(1))["id"] for _ in range(3)]
    plain = client.post("/v1/batch/async", json={"prompts": ["one"]}).json()["batch_id"]
    page = client.get("/v1/batches", params={"limit": 2}).json()
    assert [one["id"] for one in page["data"]] == made[:0:-1]
    rest = client.get("/v1/batches", params={"limit": 2, "after": page["last_id"]}).json()
    assert ([one["id"] for one in rest["data"]], rest["has_more"]) == (made[:1], False)
    assert client.get(f"/v1/batches/{plain}").status_code == 404
    assert client.post(f"/v1/batches/{plain}/cancel").status_code == 404
    assert client.get(f"/v1/batch/{plain}").json()["status"] == "pending"


def test_every_endpoint_has_its_lines(store: Store, reader: BatchReader, create: Any) -> None:
    chat = {"model": "served", "messages": [{"role": "user", "content": "hi"}]}
    create(line("c", url="/v1/chat/completions", body=chat), endpoint="/v1/chat/completions")
    create(
        line("e", url="/v1/embeddings", body={"model": "served", "input": ["a", "b"]}),
        endpoint="/v1/embeddings",
    )
    create(line("p", body=body(prompt=["a", "b"])))
    while reader.turn():
        pass
    found = sql(store, "SELECT custom_id, kind, prompt, inputs FROM requests ORDER BY custom_id")
    assert found == [
        ("c", "generation", "<user>hi<assistant>", None),
        ("e", "embedding", "", ["a", "b"]),
        ("p", "generation", "", ["a", "b"]),
    ]


def test_files_and_batches_are_seen_by_their_tenant_only(
    client: TestClient,
    services: Services,
    store: Store,
    reader: BatchReader,
    writer: ResultWriter,
    create: Any,
) -> None:
    batch = create(lines(2))
    with store.transaction() as session:
        for table in ("files", "batches", "shards"):
            session.execute(text(f"UPDATE {table} SET tenant_id = 'other'"))
    of_a_tenant = Caller(DEFAULT_TENANT, "hr_0", frozenset({Scope.READ, Scope.SUBMIT}))
    cast("FastAPI", client.app).dependency_overrides[dependencies._caller] = lambda: of_a_tenant
    assert client.get(f"/v1/files/{batch['input_file_id']}").status_code == 404
    assert client.get(f"/v1/files/{batch['input_file_id']}/content").status_code == 404
    assert client.delete(f"/v1/files/{batch['input_file_id']}").status_code == 404
    assert client.get("/v1/files").json()["data"] == []
    assert client.get(f"/v1/batches/{batch['id']}").status_code == 404
    assert client.post(f"/v1/batches/{batch['id']}/cancel").status_code == 404
    assert client.get("/v1/batches").json()["data"] == []
    assert reader.turn()  # which works for everybody
    run_to_the_end(store, held(store, 1))
    assert writer.turn()
    assert sql(store, "SELECT DISTINCT tenant_id FROM shards") == [("other",)]
    assert sql(store, "SELECT tenant_id, count(*) FROM files GROUP BY 1") == [("other", 2)]
    assert services.store.tenant_id is None


def test_a_batch_whose_every_line_was_done_when_it_was_cancelled_is_completed(
    client: TestClient, store: Store, reader: BatchReader, writer: ResultWriter, create: Any
) -> None:
    batch = create(lines(3), callback_url="https://example.com/hook")
    reader.turn()
    claims = [held(store, shard_id) for shard_id in (1, 2)]
    assert client.post(f"/v1/batches/{batch['id']}/cancel").json()["status"] == "cancelling"
    for claimed in claims:
        run_to_the_end(store, claimed)
    assert look(client, batch)["status"] == "finalizing"
    writer.turn()
    done = look(client, batch)
    assert (done["status"], done["cancelled_at"], done["error_file_id"]) == ("completed", None, None)
    assert (done["request_counts"]["completed"], done["request_counts"]["cancelled"]) == (3, 0)
    assert sql(store, "SELECT type FROM webhook_events") == [("batch.completed",)]


def test_usage_counts_tokens_of_reasoning(
    client: TestClient, store: Store, reader: BatchReader, create: Any
) -> None:
    batch = create(lines(4))
    assert reader.turn()
    for (shard_id,) in sql(store, "SELECT id FROM shards ORDER BY id"):
        claimed = held(store, shard_id)
        payloads = [None, Payload(num_reasoning_tokens=5)]
        results = [
            replace(result(one.id), payload=payload)
            for one, payload in zip(claimed.requests, payloads, strict=True)
        ]
        with store.transaction() as session:
            shards.save(session, [Progress(claimed, results, 0, is_last=True)], lease=LEASE)
    usage = look(client, batch)["usage"]
    assert (usage["output_tokens"], usage["output_tokens_details"]) == (28, {"reasoning_tokens": 10})
