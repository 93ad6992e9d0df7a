"""Whoever waits gets what the rows say, whatever becomes of the tokens told on the way."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from api.generate import waiting
from api.main import create_app
from tests.fixtures.batches import LEASE, held, result
from tests.fixtures.deployment import eventually, free_port
from worker.contract.feed import Saved
from worker.contract.messages import GPU_QUEUE
from worker.queue.feed import FeedWriter
from worker.settings import Settings, settings
from worker.store.batches import batch_views
from worker.store.database.session import Store
from worker.store.requests import result_views
from worker.store.shards import shards
from worker.store.shards.shards import Claim, Progress
from worker.store.watching import workers
from worker.values.delta import Delta
from worker.values.outcomes import Outcome
from worker.values.results import RequestError

TEXT = "the whole text"
INFO = {"name": "demo", "architecture": "Llama", "dtype": "int8", "device": "cpu", "max_num_sequences": 8}
INFO |= {"steps_at_once": 2, "max_model_len": 64, "num_parameters": 5}


@pytest.fixture
def alive(store: Store) -> None:
    """A gpu worker that says that it is alive."""
    with store.transaction() as session:
        workers.seen(session, name="gpu@here", queue=GPU_QUEUE, slots=1, info=INFO)


def answer(store: Store, claimed: Claim, output: str = TEXT, error: str | None = None) -> None:
    """Save what a worker would."""
    results = [result(request.id, output=output) for request in claimed.requests]
    if error is not None:
        failure = RequestError("generation_failed", error)
        results = [replace(one, outcome=Outcome.FAILED, output=None, error=failure) for one in results]
    with store.transaction() as session:
        shards.save(session, [Progress(claimed, results, running_tokens=0, is_last=True)], lease=LEASE)


@contextmanager
def working(store: Store, work: Callable[[Claim], None]) -> Iterator[None]:
    """Do this with the next interactive shard, as a worker would."""

    def ready() -> list[int]:
        with store.transaction() as session:
            query = "SELECT id FROM shards WHERE state = 'ready' AND lane = 'interactive' LIMIT 1"
            return list(session.scalars(text(query)))

    def run() -> None:
        (shard_id,) = eventually(ready, what="an interactive shard")
        work(held(store, shard_id))

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        yield
        running.result(60)


def body(**options: Any) -> dict[str, Any]:
    return {"prompt": "hello", **options}


def pieces(response: Any) -> list[dict[str, Any]]:
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    return [json.loads(one) for one in events[:-1]]


@pytest.mark.usefixtures("alive")
def test_an_answer_needs_nothing_but_the_rows(client: TestClient, store: Store) -> None:
    with working(store, lambda claimed: answer(store, claimed)):
        found = client.post("/v1/generate", json=body())
    assert found.status_code == 200, found.text
    assert (found.json()["text"], found.json()["tokens_generated"]) == (TEXT, 7)


@pytest.mark.usefixtures("alive")
def test_what_was_lost_of_a_stream_comes_from_the_result(client: TestClient, store: Store) -> None:
    feed = FeedWriter(settings().redis_url)

    def work(claimed: Claim) -> None:
        # "whole " is lost, so what follows it must not be passed on.
        for offset, piece in ((0, "the "), (10, "te"), (12, "xt")):
            feed.tell(claimed.batch_id, Delta(0, 0, offset, piece, 1))
        answer(store, claimed)
        feed.tell(claimed.batch_id, Saved())

    with working(store, work):
        found = client.post("/v1/generate", json=body(stream=True))
    feed.close()
    *parts, whole = pieces(found)
    assert [part["text"] for part in parts] == ["the ", "whole text"]
    assert whole["text"] == TEXT


@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("include_usage", [False, True])
def test_each_chunk_has_the_usage_so_far(
    client: TestClient, store: Store, path: str, include_usage: bool
) -> None:
    feed = FeedWriter(settings().redis_url)

    def work(claimed: Claim) -> None:
        # The last one follows a gap.
        for offset, piece, count in ((0, "the ", 2), (4, "whole ", 1), (11, "xt", 1)):
            feed.tell(claimed.batch_id, Delta(0, 0, offset, piece, count))
        answer(store, claimed)
        feed.tell(claimed.batch_id, Saved())

    asked: dict[str, Any] = {"model": client.get("/v1/models").json()["data"][0]["id"], "stream": True}
    asked |= {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "hello"}
    asked["stream_options"] = {"include_usage": include_usage, "continuous_usage_stats": True}
    with working(store, work):
        found = client.post(path, json=asked)
    feed.close()
    parts = pieces(found)
    num_prompt_tokens = len("<user>hi<assistant>") if "chat" in path else len("hello")
    if include_usage:
        last = parts.pop()
        assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 7)
    assert [part["usage"] for part in parts] == [
        {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": count,
            "total_tokens": num_prompt_tokens + count,
        }
        for count in (2, 3, 7)
    ]


@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize("path", ["/v1/generate", "/v1/completions"])
def test_a_stream_whose_result_is_another_text_ends_with_an_error(
    client: TestClient, store: Store, path: str
) -> None:
    """A worker that dies has told what the next one, drawing other tokens, does not generate."""
    feed = FeedWriter(settings().redis_url)

    def work(claimed: Claim) -> None:
        feed.tell(claimed.batch_id, Delta(0, 0, 0, "another", 1))
        answer(store, claimed)
        feed.tell(claimed.batch_id, Saved())

    model = {"model": client.get("/v1/models").json()["data"][0]["id"]} if "comp" in path else {}
    with working(store, work):
        found = client.post(path, json=body(stream=True, **model))
    feed.close()
    told = [json.loads(line.removeprefix("data: ")) for line in found.text.splitlines() if line]
    assert "another" in json.dumps(told[0])
    assert told[-1]["error"]["code"] == "stream_interrupted"


@pytest.mark.slow
@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize("stream", [False, True])
def test_who_waits_while_postgres_is_away_gets_the_answer(
    client: TestClient, store: Store, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    failures = [iter(range(2)), iter(range(2))]
    for left, module, name in zip(failures, (batch_views, result_views), ("get", "page"), strict=True):
        monkeypatch.setattr(module, name, _away(getattr(module, name), left))
    with working(store, lambda claimed: answer(store, claimed)):
        found = client.post("/v1/generate", json=body(stream=stream))
    assert TEXT in found.text
    assert "error" not in found.text
    assert [next(left, None) for left in failures] == [None, None], "Postgres was never away"


def _away(ask: Callable[..., Any], left: Iterator[int]) -> Callable[..., Any]:
    def away(*args: Any, **options: Any) -> Any:
        if next(left, None) is not None:
            raise OperationalError("SELECT", None, Exception("the database is restarting"))
        return ask(*args, **options)

    return away


@pytest.mark.usefixtures("alive")
def test_a_submission_whose_commit_was_cut_off_leaves_nothing_running(
    client: TestClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = waiting._submit

    def cut_off(*args: Any, **options: Any) -> None:
        submit(*args, **options)
        raise OperationalError("COMMIT", None, Exception("the connection was reset"))

    monkeypatch.setattr(waiting, "_submit", cut_off)
    assert client.post("/v1/generate", json=body()).status_code == 503
    with store.transaction() as session:
        assert session.scalars(text("SELECT status FROM batches")).all() == ["cancelled"]


@pytest.mark.usefixtures("alive")
def test_without_redis_the_text_comes_at_once(store: Store, config: Settings) -> None:
    away = config.model_copy(update={"redis_url": f"redis://127.0.0.1:{free_port()}/0"})
    with TestClient(create_app(away)) as client, working(store, lambda claimed: answer(store, claimed)):
        found = client.post("/v1/generate", json=body(stream=True))
    *parts, whole = pieces(found)
    assert [part["text"] for part in parts] == [TEXT] == [whole["text"]]


@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_request_that_fails_is_an_error(client: TestClient, store: Store, is_streamed: bool) -> None:
    with working(store, lambda claimed: answer(store, claimed, error="a bad grammar")):
        found = client.post("/v1/generate", json=body(stream=is_streamed))
    said = json.loads(found.text.removeprefix("data: "))["error"]
    assert (said["message"], said["code"]) == ("a bad grammar", "generation_failed")
    assert found.status_code == (200 if is_streamed else 400)


def test_without_a_worker_nothing_is_accepted(client: TestClient, store: Store) -> None:
    for path in ("/v1/generate", "/v1/completions"):
        model = {"model": client.get("/v1/models").json()["data"][0]["id"]} if "comp" in path else {}
        for stream in (False, True):
            found = client.post(path, json=body(stream=stream, **model))
            assert "No worker serves" in found.text
    assert client.get("/v1/model/info").status_code == 503
    with store.transaction() as session:
        assert session.scalar(text("SELECT count(*) FROM batches")) == 0


@pytest.mark.usefixtures("alive")
def test_who_waits_too_long_is_told_so_and_the_work_ends(store: Store, config: Settings) -> None:
    short = config.model_copy(update={"wait_seconds": 0.2})
    with TestClient(create_app(short)) as client:
        found = client.post("/v1/generate", json=body())
    assert (found.status_code, found.json()["error"]["code"]) == (504, "wait_limit")
    with store.transaction() as session:
        assert session.scalar(text("SELECT status FROM batches")) == "cancelled"


def test_a_synchronous_batch_outlives_the_wait(client: TestClient, store: Store) -> None:
    found = client.post("/v1/batch/sync", json={"prompts": ["a", "b"], "wait_seconds": 0})
    assert found.status_code == 202, found.text
    batch_id = found.json()["batch_id"]
    with working(store, lambda claimed: answer(store, claimed)):
        pass
    assert client.get(f"/v1/batch/{batch_id}").json()["outputs"] == [TEXT, TEXT]
    with working(store, lambda claimed: answer(store, claimed)):
        whole = client.post("/v1/batch/sync", json={"prompts": ["a", "b"]})
    assert whole.json()["outputs"] == [TEXT, TEXT]
    assert whole.json()["total_tokens"] == 20


@pytest.mark.usefixtures("alive")
def test_interactive_work_takes_no_ticket_and_no_list_shows_it(client: TestClient, store: Store) -> None:
    from datetime import timedelta

    from worker.store.shards import tickets

    seen = threading.Event()

    def work(claimed: Claim) -> None:
        assert client.get("/v1/batch/stats").json()["total_batches"] == 0
        seen.set()
        answer(store, claimed)

    with store.transaction() as session:
        assert list(tickets.issue_shards(session, window=8, reissue_after=timedelta(0))) == []
    with working(store, work):
        client.post("/v1/generate", json=body())
    assert seen.is_set()


@pytest.mark.usefixtures("alive")
def test_the_engine_that_runs_is_described(client: TestClient) -> None:
    found = client.get("/v1/model/info").json()
    assert (found["model_name"], found["quantization"], found["batch_size"]) == ("demo", "int8", 16)
    assert (found["max_sequence_length"], found["workers"]) == (64, 1)
