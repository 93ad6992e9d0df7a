"""An experiment on a batch from a file: its lines take part as they are read."""

import json
from collections import Counter
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, text

from api.dependencies import open_services
from api.files import reading
from api.files.reading import BatchReader
from tests.api.batches.test_models import seen
from tests.api.test_experiments import run_all, serve_other, served, sweep
from tests.fixtures.batches import LEASE, result
from worker.contract.models import Model, ServedModel, identify
from worker.settings import Settings
from worker.store.database.session import Store
from worker.store.requests import models
from worker.store.rows.shards import ShardRow
from worker.store.shards import shards
from worker.store.shards.shards import Claim, Progress

WITH_TOOLS = {
    "messages": [{"role": "user", "content": "jump"}],
    "tools": [{"type": "function", "function": {"name": "paint"}}],
    "tool_endpoint": {"url": "https://example.com/tools"},
}


@pytest.fixture
def other(store: Store, config: Settings) -> Model:
    """Another model with the served one's tokenizer, which a live worker serves."""
    return serve_other(store, config)


def upload(client: TestClient, texts: list[str], **line: object) -> str:
    """Upload the lines of a batch with these prompts; return the file's id."""
    model = served(client)
    rows = [
        {
            "custom_id": f"{i}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": model, "prompt": text, "max_tokens": 5, "temperature": 0},
            "expected": "yes",
        }
        | line
        for i, text in enumerate(texts)
    ]
    content = "\n".join(map(json.dumps, rows)).encode()
    file = client.post("/v1/files", files={"file": ("rows.jsonl", content)}, data={"purpose": "batch"})
    assert file.status_code == 200, file.text
    return str(file.json()["id"])


def make(client: TestClient, file: str, status: int = 200, **fields: object) -> dict[str, Any]:
    body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"} | fields
    answer = client.post("/v1/batches", json=body)
    assert answer.status_code == status, answer.text
    return dict(answer.json())


@pytest.fixture
def reader(config: Settings) -> Iterator[BatchReader]:
    """The process that reads the lines of batches."""
    services = open_services(config)
    yield BatchReader(services, Event())
    services.store.close()


def test_a_batch_of_a_file_has_an_experiment_once_it_is_read(
    client: TestClient, store: Store, reader: BatchReader, other: Model
) -> None:
    batch_id = make(client, upload(client, ["0", "1", "2", "3"]))["id"]
    body = {"batch_id": batch_id, "model": other.name, "share": 0.5}
    early = client.post("/v1/experiments", json=body)
    assert (early.status_code, "still read from its file" in early.json()["error"]["message"]) == (409, True)
    while reader.turn():
        pass
    started = client.post("/v1/experiments", json=body)
    assert started.status_code == 201, started.text
    run_all(store)
    sweep(store)
    found = client.get(f"/v1/experiments/{started.json()['experiment_id']}").json()
    assert (found["requests"], found["judged"], found["difference"]) == (2, 2, 0)


def test_an_experiment_is_asked_for_with_a_file(
    client: TestClient, store: Store, reader: BatchReader, other: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins with the last line, and lines that were run before take part too."""
    monkeypatch.setattr(reading, "CHUNK_LINES", 4)
    monkeypatch.setattr(reading, "TURN_LINES", 4)
    wanted = {"model": other.name, "share": 0.5}
    made = make(client, upload(client, [f"{i}" for i in range(8)]), experiment=wanted)
    url = f"/v1/experiments/{made['experiment_id']}"
    before = client.get(url).json()
    assert (before["mode"], before["status"], before["requests"]) == ("shadow", "running", 0)
    assert (before["batch_id"], before["b"]["revision"]) == (made["id"], other.fingerprint)
    assert reader.turn()
    run_all(store)
    sweep(store)
    assert (client.get(url).json()["status"], client.get(url).json()["requests"]) == ("running", 0)
    while reader.turn():
        pass
    assert client.get(url).json()["requests"] == 4
    run_all(store)
    sweep(store)
    after = client.get(url).json()
    assert (after["status"], after["expected"], after["judged"], after["agreement"]) == ("ended", 4, 4, 1)
    batch = client.get(f"/v1/batches/{made['id']}").json()
    assert (batch["experiment_id"], batch["request_counts"]["completed"]) == (made["experiment_id"], 8)
    assert client.get(f"/v1/batch/{made['id']}").json()["experiment_id"] == made["experiment_id"]


def claim_each(store: Store, config: Settings, other: Model) -> list[Claim]:
    """Have a worker of each of the two models claim the shards that wait for it."""
    with store.transaction() as session:
        served = {
            one.fingerprint: models.register(session, ServedModel(one, "bfloat16", "f32"))
            for one in (identify(config.model), other)
        }
        ready = select(ShardRow.id, ShardRow.model_fingerprint).where(ShardRow.state == "ready")
        shard_rows = session.execute(ready).all()
    claims = []
    for shard_id, fingerprint in shard_rows:
        with store.transaction() as session:
            model = served[fingerprint]
            claimed = shards.claim(session, shard_id, worker="gpu@here", lease=LEASE, model=model)
            assert claimed is not None
            claims.append(claimed)
    return claims


def finish(store: Store, claims: list[Claim]) -> None:
    for claimed in claims:
        with store.transaction() as session:
            results = [result(one.id, output="yes") for one in claimed.requests]
            shards.save(session, [Progress(claimed, results, running_tokens=0, is_last=True)], lease=LEASE)


def run_each(store: Store, config: Settings, other: Model) -> None:
    """Have a worker of each of the two models run the shards that wait for it."""
    finish(store, claim_each(store, config, other))


def test_the_lines_of_a_file_are_shared_out_as_they_are_read(
    client: TestClient,
    store: Store,
    reader: BatchReader,
    config: Settings,
    other: Model,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker never has a line that is the other model's, also where a later line is the same."""
    monkeypatch.setattr(reading, "CHUNK_LINES", 10)
    monkeypatch.setattr(reading, "TURN_LINES", 10)
    texts = [f"{i}" for i in range(20)]
    made = make(client, upload(client, texts * 2), experiment={"model": "small", "mode": "ab", "share": 0.5})
    turns = 0
    while reader.turn():
        turns += 1
        run_each(store, config, other)
    assert turns == 3
    sweep(store)
    found = client.get(f"/v1/experiments/{made['experiment_id']}").json()
    rows = client.get(f"/v1/batch/{made['id']}/results?limit=100&include=request").json()["data"]
    assert sorted(row["index"] for row in rows) == list(range(40))
    by_model = Counter(row["model"]["name"] for row in rows)
    assert by_model[other.name] == found["requests"] == found["judged"]
    # Half of each first occurrence; a second one is the copy of a line of the batch's model, or a new line.
    assert 10 <= found["requests"] <= 15
    assert found["status"] == "ended"
    with store.transaction() as session:
        pairs = session.execute(text("SELECT position, shadow_position FROM experiment_lines")).all()
    names = {row["index"]: row["model"]["name"] for row in rows}
    assert {names[pair.shadow_position] for pair in pairs} == {other.name}
    assert other.name not in {names[pair.position] for pair in pairs}
    assert len({position for pair in pairs for position in pair}) == 2 * len(pairs)


def test_a_line_like_one_that_was_moved_is_run_though_it_joins_the_shard_that_that_one_left(
    client: TestClient,
    store: Store,
    reader: BatchReader,
    config: Settings,
    other: Model,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run of that shard, which was claimed before, ends without it."""
    monkeypatch.setattr(reading, "CHUNK_LINES", 10)
    monkeypatch.setattr(reading, "TURN_LINES", 10)
    texts = [f"{i}" for i in range(10)]
    made = make(client, upload(client, texts * 2), experiment={"model": "small", "mode": "ab", "share": 0.5})
    assert reader.turn()
    claims = claim_each(store, config, other)
    while reader.turn():
        pass
    finish(store, claims)
    run_each(store, config, other)
    batch = client.get(f"/v1/batches/{made['id']}").json()
    assert (batch["request_counts"]["completed"], batch["status"]) == (20, "finalizing")


def test_a_file_is_read_on_after_its_experiment_has_ended(
    client: TestClient,
    store: Store,
    reader: BatchReader,
    config: Settings,
    other: Model,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "CHUNK_LINES", 4)
    monkeypatch.setattr(reading, "TURN_LINES", 4)
    for mode in ("ab", "shadow"):
        wanted = {"model": other.name, "mode": mode, "share": 0.5}
        made = make(client, upload(client, [f"{i}" for i in range(8)]), experiment=wanted)
        url = f"/v1/experiments/{made['experiment_id']}"
        assert reader.turn()
        assert client.post(f"{url}/rollback").json()["status"] == "rolled_back"
        sweep(store)
        while reader.turn():
            pass
        run_each(store, config, other)
        rows = client.get(f"/v1/batch/{made['id']}/results").json()["data"]
        assert len(rows) == 8
        assert other.name not in {row["model"]["name"] for row in rows}
        assert client.get(url).json()["requests"] == (2 if mode == "ab" else 0)


def test_an_experiment_ends_with_a_file_of_which_nothing_runs(
    client: TestClient, store: Store, reader: BatchReader, other: Model
) -> None:
    cancelled = make(client, upload(client, ["0", "1"]), experiment={"model": other.name})
    client.post(f"/v1/batches/{cancelled['id']}/cancel")
    looped = {"url": "/v1/chat/completions", "body": WITH_TOOLS | {"model": served(client)}}
    nothing = make(
        client,
        upload(client, ["0", "1"], **looped),
        endpoint="/v1/chat/completions",
        experiment={"model": other.name, "share": 1},
    )
    while reader.turn():
        pass
    sweep(store)
    run_all(store)
    sweep(store)
    for made in (cancelled, nothing):
        found = client.get(f"/v1/experiments/{made['experiment_id']}").json()
        assert (found["status"], found["requests"]) == ("ended", 0)


@pytest.mark.usefixtures("other")
@pytest.mark.parametrize(
    ("experiment", "param", "problem"),
    [
        ({"model": "nobodys"}, "experiment.model", "no worker serves 'nobodys'"),
        ({"model": "spelt"}, "experiment.model", "another tokenizer or chat template"),
        ({"share": 1.5}, "experiment.share", "must be at most 1"),
        ({"mode": "ab", "share": 0.6}, "experiment.share", "must be at most 0.5 in mode ab"),
        ({"colour": "red"}, "experiment.colour", "not a known field"),
        ({"mode": "ab"}, "experiment", "nothing to compare"),
    ],
)
def test_an_experiment_on_a_file_that_cannot_run_is_refused_by_name(
    client: TestClient, store: Store, experiment: dict[str, Any], param: str, problem: str
) -> None:
    seen(store, Model("spelt", "c" * 32, "elsewhere"))
    file = upload(client, ["one line"])
    error = make(client, file, 400, experiment={"model": "small", "share": 0.5} | experiment)["error"]
    assert error["param"] == param
    assert problem in error["message"]
    with store.transaction() as session:
        assert session.scalar(text("SELECT count(*) FROM batches")) == 0


@pytest.mark.usefixtures("other")
def test_a_file_of_texts_to_embed_has_no_experiment(client: TestClient) -> None:
    body = {"model": served(client), "input": "x"}
    file = upload(client, ["0"], url="/v1/embeddings", body=body, expected=None)
    error = make(client, file, 400, endpoint="/v1/embeddings", experiment={"model": "small"})["error"]
    assert error["param"] == "experiment"


@pytest.mark.usefixtures("other")
def test_a_retried_submission_of_a_file_finds_its_experiment(client: TestClient) -> None:
    file = upload(client, ["0", "1"])
    body = {
        "input_file_id": file,
        "endpoint": "/v1/completions",
        "completion_window": "24h",
        "experiment": {"model": "small"},
    }
    first = client.post("/v1/batches", json=body).json()
    again = client.post("/v1/batches", json=body, headers={"x-stainless-retry-count": "1"}).json()
    assert (again["id"], again["experiment_id"]) == (first["id"], first["experiment_id"])
    assert len(client.get("/v1/experiments").json()["data"]) == 1
