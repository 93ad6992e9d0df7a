"""Answers that last, and whose batch goes away meanwhile, end with the reason, and no connection is torn."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from tests.fixtures.api_process import ApiProcess, api_process
from tests.fixtures.batches import held, run_to_the_end, submit
from tests.fixtures.checkpoint import write_checkpoint
from worker.store.database.session import Store
from worker.store.shards import control
from worker.store.shards.control import Done


@pytest.fixture
def api(store: Store, tmp_path: Path) -> Iterator[ApiProcess]:  # noqa: ARG001 - empties the tables
    with api_process(tmp_path, write_checkpoint(tmp_path)) as running:
        yield running


def delete(store: Store, batch_id: str) -> None:
    """Delete a batch at the very moment of its end, so that nobody who follows it has seen that."""
    with store.transaction() as session:
        session.execute(text("UPDATE batches SET status = 'cancelled', finished_at = now()"))
        assert control.remove(session, batch_id) is Done.YES


@pytest.mark.slow
def test_lines_and_events_of_a_deleted_batch_say_so(api: ApiProcess, store: Store) -> None:
    batch_id = submit(store, num_requests=4, shard_size=2)
    run_to_the_end(store, held(store, 1))
    with (
        httpx.Client(base_url=api.url, timeout=60) as client,
        client.stream("GET", f"/v1/batch/{batch_id}/results?follow=1") as results,
        client.stream("GET", f"/v1/batch/{batch_id}/events") as events,
    ):
        lines, told = results.iter_lines(), events.iter_lines()
        assert [json.loads(next(lines))["index"] for _ in range(2)] == [0, 1]
        assert next(told) == "event: progress"
        delete(store, batch_id)
        last = [json.loads(line) for line in lines]
        assert [list(one) for one in last] == [["error"]]
        assert batch_id in last[0]["error"]["message"]
        *_, name, data = [line for line in told if line]
        assert name == "event: error"
        assert json.loads(data.removeprefix("data: ")) == last[0]
    assert "Traceback" not in api.log.read_text()


def test_whoever_waits_for_results_of_a_batch_that_is_deleted_is_told(
    client: TestClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from api.batches import service

    has_news: Callable[..., bool] = service.has_news
    batch_id = submit(store)
    looks: list[bool] = []

    def look(*args: object, **options: object) -> bool:
        looks.append(has_news(*args, **options))
        if len(looks) == 1:
            delete(store, batch_id)
        return looks[-1]

    monkeypatch.setattr(service, "has_news", look)
    assert client.get(f"/v1/batch/{batch_id}/results?wait=60").status_code == 404
    assert looks == [False, True]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["results?follow=1", "results", "events"])
def test_postgres_going_away_is_the_last_line(
    client: TestClient,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    path: str,
) -> None:
    from sqlalchemy.exc import OperationalError

    from api.batches import service

    batch_id = submit(store, num_requests=4, shard_size=2)
    run_to_the_end(store, held(store, 1))
    monkeypatch.setattr(service, "PAGE", 1)
    name = "answer" if path == "events" else "page"
    ask, asked = getattr(service, name), []

    def away(*args: object, **options: object) -> object:
        asked.append(options)
        if len(asked) > 2:
            raise OperationalError("SELECT", None, Exception("the database is restarting"))
        return ask(*args, **options)

    monkeypatch.setattr(service, name, away)
    with caplog.at_level(logging.WARNING):
        answer = client.get(f"/v1/batch/{batch_id}/{path}", headers={"accept": "application/x-ndjson"})
    assert answer.status_code == 200
    last = answer.text.split("\n")[-2 if path != "events" else -3].removeprefix("data: ")
    assert json.loads(last)["error"]["type"] == "service_unavailable"
    assert "Traceback" not in caplog.text
