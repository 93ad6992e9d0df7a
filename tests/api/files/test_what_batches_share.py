"""What the plain API's batches can do, those made from files can too."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi.testclient import TestClient
from httpx import Response
from sqlalchemy import text

from api.files import reading
from api.files.reading import BatchReader
from api.files.writing import ResultWriter
from api.main import create_app
from tests.api.files.test_file_batches import content, look, sql
from tests.fixtures.access import allow_semantic_cache
from tests.fixtures.batches import LEASE, claim, held, result, run_to_the_end
from tests.fixtures.deployment import eventually, free_port
from tests.fixtures.inputs import body, line, lines
from worker.settings import Settings
from worker.store.batches import starts
from worker.store.database.session import Store
from worker.store.shards import shards
from worker.store.shards.shards import Progress
from worker.values.outcomes import Outcome
from worker.values.results import RequestError

Put = Callable[..., Response]


def test_results_are_followed_while_the_file_is_read(
    client: TestClient, store: Store, reader: BatchReader, create: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK_LINES", 2)
    monkeypatch.setattr(reading, "TURN_LINES", 2)
    batch = create(lines(5))
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(client.app, port=port, log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    eventually(lambda: server.started, what="the server")
    url = f"http://127.0.0.1:{port}/v1/batch/{batch['id']}/results"
    found: list[dict[str, Any]] = []
    try:
        with httpx.stream("GET", url, params={"follow": 1, "after": 0}, timeout=120) as answer:
            assert answer.headers["content-type"].startswith("application/x-ndjson")
            came = (json.loads(one) for one in answer.iter_lines())
            for shard_id, num_lines in ((1, 2), (2, 2), (3, 1)):
                reader.turn()
                run_to_the_end(store, held(store, shard_id))
                found += [next(came) for _ in range(num_lines)]  # before the rest is even read
            assert list(came) == [], "it ends with the batch"
    finally:
        server.should_exit = True
        thread.join()
    assert [(one["sequence"], one["custom_id"]) for one in found] == [(i + 1, f"row-{i}") for i in range(5)]
    assert {one["status"] for one in found} == {"completed"}


def test_a_batch_says_that_its_file_waits_to_be_read(
    client: TestClient, store: Store, reader: BatchReader, create: Any
) -> None:
    batch = create(lines(2))

    def reason() -> str:
        waiting = client.get(f"/v1/batch/{batch['id']}").json()["waiting"]
        return str(waiting["reason"])

    assert reason() == "reading_file"
    sql(store, "UPDATE batch_files SET due_at = now() - interval '1 min' RETURNING batch_id")
    assert reason() == "file_unread"
    reader.turn()
    assert reason() == "no_worker"


def test_a_batch_of_a_file_stops_itself_and_says_why(
    client: TestClient, store: Store, reader: BatchReader, writer: ResultWriter, create: Any
) -> None:
    batch = create(lines(4), max_failed=0, max_total_tokens=10_000, callback_url="https://example.com/hook")
    reader.turn()
    claimed = held(store, 1)
    failed = [
        replace(result(one.id, outcome=Outcome.FAILED), error=RequestError("generation_failed", "no"))
        for one in claimed.requests
    ]
    with store.transaction() as session:
        shards.save(session, [Progress(claimed, failed, 0, is_last=True)], lease=LEASE)
    assert look(client, batch)["status"] == "finalizing"
    writer.turn()
    done = look(client, batch)
    assert (done["status"], done["request_counts"]["failed"]) == ("failed", 2)
    assert done["finalizing_at"] is not None
    assert [one["code"] for one in done["errors"]["data"]] == ["max_failed_exceeded"]
    assert len(content(client, done["error_file_id"])) == 4
    ((event,),) = sql(store, "SELECT body FROM webhook_events")
    data = json.loads(event)["data"]
    assert data["error"]["code"] == "max_failed_exceeded"
    assert data["links"]["error_file"] == f"/v1/files/{done['error_file_id']}/content"
    assert "output_file" not in data["links"]


def test_a_batch_of_a_file_takes_the_cache_it_asks_for(
    client: TestClient, store: Store, put: Put, create: Any
) -> None:
    create(lines(1), cache="exact")
    assert sql(store, "SELECT cache, cache_similarity FROM batches") == [("exact", None)]
    asked = {"input_file_id": put(lines(2)).json()["id"], "endpoint": "/v1/completions"}
    asked |= {"completion_window": "1h", "cache": "semantic", "cache_similarity": 0.9}
    refused = client.post("/v1/batches", json=asked)
    assert (refused.status_code, refused.json()["error"]["param"]) == (403, "cache")
    allow_semantic_cache(store)
    assert client.post("/v1/batches", json=asked).status_code == 200
    found = sql(store, "SELECT cache, cache_similarity FROM batches WHERE cache <> 'exact'")
    assert found == [("semantic", 0.9)]


def test_a_default_that_a_tenant_may_not_have_is_the_exact_cache(store: Store, config: Settings) -> None:
    semantic = config.model_copy(update={"cache": "semantic"})
    with TestClient(create_app(semantic)) as client:
        for expected in ("exact", "semantic"):
            assert client.post("/v1/batch/async", json={"prompts": ["a"]}).status_code == 202
            newest = "SELECT cache FROM batches ORDER BY created_at DESC LIMIT 1"
            assert sql(store, newest) == [(expected,)]
            allow_semantic_cache(store)


def test_a_line_may_have_a_priority_of_its_own(store: Store, reader: BatchReader, create: Any) -> None:
    own = line("row-9", body=body(prompt="two", priority=5))
    create(lines(1) + own, priority=2)
    assert reader.turn()
    found = sql(
        store, "SELECT prompt, priority FROM requests r JOIN shards s ON s.id = shard_id ORDER BY r.id"
    )
    assert found == [("one", 2), ("two", 5)]


def test_a_name_may_come_in_the_metadata(client: TestClient, store: Store, create: Any) -> None:
    plain = create(lines(1), name="own", metadata={"name": "other", "run": "1"})
    named = create(lines(1), metadata={"name": "nightly", "run": "1"})
    unnamed = create(lines(1), metadata={"name": ""})
    assert [one["name"] for one in (plain, named, unnamed)] == ["own", "nightly", None]

    def found(query: str) -> list[str]:
        return [one["id"] for one in client.get(f"/v1/batches?{query}").json()["data"]]

    assert found("name=nightly") == [named["id"]]
    assert found("metadata[run]=1") == [named["id"], plain["id"]]
    assert found(f"metadata[run]=1&limit=1&after={named['id']}") == [plain["id"]]
    with store.transaction() as session:
        session.execute(text("UPDATE batches SET tenant_id = 'theirs' WHERE name = 'nightly'"))
    assert found("name=nightly") == []


def test_a_file_is_read_before_its_batch_may_start(
    client: TestClient, store: Store, reader: BatchReader, create: Any
) -> None:
    batch = create(lines(2), start_after=7200, completion_window="1h")
    assert batch["expires_at"] - batch["start_after"] == 3600
    assert reader.turn()
    waiting = client.get(f"/v1/batch/{batch['id']}").json()["waiting"]
    assert waiting["reason"] == "scheduled"
    assert claim(store, 1) is None
    with store.transaction() as session:
        session.execute(text("UPDATE batches SET start_after = now()"))
    with store.transaction() as session:
        assert starts.start_due(session, limit=10) == 1
    assert claim(store, 1) is not None
