"""An experiment over HTTP: asked for with a batch, looked at, promoted, rolled back."""

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
from tests.fixtures.batches import LEASE, held, result
from worker.contract.models import Model, ServedModel, identify
from worker.settings import Settings
from worker.store.database.session import Store
from worker.store.experiments import experiments
from worker.store.requests import models
from worker.store.rows.shards import ShardRow
from worker.store.shards import shards
from worker.store.shards.shards import Progress

WITH_TOOLS = {
    "messages": [{"role": "user", "content": "jump"}],
    "tools": [{"type": "function", "function": {"name": "paint"}}],
    "tool_endpoint": {"url": "https://example.com/tools"},
}


@pytest.fixture
def other(store: Store, config: Settings) -> Model:
    """Another model with the served one's tokenizer, which a live worker serves."""
    model = Model("small", "b" * 32, identify(config.model).tokenizer)
    seen(store, model)
    return model


def submit(client: TestClient, status: int = 202, **experiment: object) -> dict[str, Any]:
    requests = [{"prompt": f"{i}", "max_tokens": 5, "expected": "yes"} for i in range(6)]
    body = {"requests": requests, "experiment": {"model": "small", "share": 0.5} | experiment}
    answer = client.post("/v1/batch/async", json=body)
    assert answer.status_code == status, answer.text
    return dict(answer.json())


def served(client: TestClient) -> str:
    """Return the name of the served model."""
    return str(client.get("/v1/models").json()["data"][0]["id"])


def run_all(store: Store) -> None:
    with store.transaction() as session:
        shard_ids = session.scalars(select(ShardRow.id).where(ShardRow.state == "ready")).all()
    for shard_id in shard_ids:
        claimed = held(store, shard_id)
        results = [result(one.id, output="yes") for one in claimed.requests]
        with store.transaction() as session:
            shards.save(session, [Progress(claimed, results, running_tokens=0, is_last=True)], lease=LEASE)


def sweep(store: Store) -> None:
    with store.transaction() as session:
        for experiment_id in experiments.open_ids(session, limit=10):
            experiments.advance(session, experiment_id)


def test_an_experiment_is_asked_for_and_reported(client: TestClient, store: Store, other: Model) -> None:
    accepted = submit(client, allowed_loss=0.02)
    url = f"/v1/experiments/{accepted['experiment_id']}"
    before = client.get(url).json()
    assert (before["status"], before["verdict"], before["batch_id"]) == (
        "running",
        "undecided",
        accepted["batch_id"],
    )
    assert (before["requests"], before["expected"], before["compared"]) == (3, 3, 0)
    assert before["planned"] > 100
    assert (before["b"]["model"], before["b"]["revision"]) == (other.name, other.fingerprint)
    assert before["a"]["quality"] is None
    run_all(store)
    sweep(store)
    after = client.get(url).json()
    assert (after["status"], after["compared"], after["judged"], after["agreement"]) == ("ended", 3, 3, 1)
    assert (after["a"]["quality"], after["b"]["quality"], after["difference"]) == (1, 1, 0)
    assert after["interval"][0] < 0 < after["interval"][1]
    assert after["more_requests"] > 0
    assert (after["failed"]["a"], after["failed"]["b"], after["valid"]["a"]) == (0, 0, None)
    assert after["output_length"] == {"a": 7, "b": 7, "interval": [0, 0]}
    assert (after["a"]["cost"]["currency"], after["speedup"], after["cost_change"]) == ("USD", None, None)
    page = client.get("/v1/experiments").json()
    assert ([one["experiment_id"] for one in page["data"]], page["has_more"]) == (
        [accepted["experiment_id"]],
        False,
    )
    results = client.get(f"/v1/batch/{accepted['batch_id']}/results").json()["data"]
    assert [one["index"] for one in results] == list(range(6))
    assert len(client.get("/v1/batch").json()["data"]) == 1


@pytest.mark.parametrize(
    ("experiment", "param", "problem"),
    [
        ({"model": "nobodys"}, "experiment.model", "no worker serves 'nobodys'"),
        ({"model": "spelt"}, "experiment.model", "another tokenizer or chat template"),
        ({"model": "short"}, "experiment.model", "the context of short@"),
        ({"share": 0}, "experiment.share", "must be more than 0"),
        ({"share": 1.5}, "experiment.share", "must be at most 1"),
        ({"mode": "ab", "share": 0.6}, "experiment.share", "must be at most 0.5 in mode ab"),
        ({"mode": "b"}, "experiment.mode", "must be"),
        ({"colour": "red"}, "experiment.colour", "not a known field"),
    ],
)
def test_an_experiment_that_cannot_run_is_refused_by_name(
    client: TestClient, store: Store, other: Model, experiment: dict[str, Any], param: str, problem: str
) -> None:
    seen(store, Model("spelt", "c" * 32, "elsewhere"))
    seen(store, Model("short", "d" * 32, other.tokenizer), context=4)
    error = submit(client, 422, **experiment)["error"]
    assert error["param"] == param
    assert problem in error["message"]
    with store.transaction() as session:
        assert session.scalar(text("SELECT count(*) FROM batches")) == 0


def test_requests_that_generate_nothing_are_no_experiment(client: TestClient, other: Model) -> None:
    body = {"requests": [{"prompt": "x", "kind": "embedding"}], "experiment": {"model": other.name}}
    answer = client.post("/v1/batch/async", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "experiment")
    assert client.get("/v1/batch").json()["data"] == []


def test_another_model_runs_a_share_in_place_of_the_batchs(
    client: TestClient, store: Store, config: Settings, other: Model
) -> None:
    """Every result says which of the two made it."""
    accepted = submit(client, mode="ab")
    base = identify(config.model)
    with store.transaction() as session:
        served = {
            one.fingerprint: models.register(session, ServedModel(one, "bfloat16", "f32"))
            for one in (base, other)
        }
        shard_rows = session.execute(select(ShardRow.id, ShardRow.model_fingerprint)).all()
    for shard_id, fingerprint in shard_rows:
        with store.transaction() as session:
            held_by = served[fingerprint]
            claimed = shards.claim(session, shard_id, worker="gpu@here", lease=LEASE, model=held_by)
            assert claimed is not None
            results = [result(one.id, output="yes") for one in claimed.requests]
            shards.save(session, [Progress(claimed, results, running_tokens=0, is_last=True)], lease=LEASE)
    sweep(store)
    found = client.get(f"/v1/experiments/{accepted['experiment_id']}").json()
    assert (found["mode"], found["status"], found["requests"], found["judged"]) == ("ab", "ended", 3, 3)
    assert (found["agreement"], found["difference"]) == (None, 0)
    rows = client.get(f"/v1/batch/{accepted['batch_id']}/results").json()["data"]
    assert sorted(row["model"]["name"] for row in rows) == sorted([base.name] * 3 + [other.name] * 3)
    assert len(client.get("/v1/batch").json()["data"]) == 1


@pytest.mark.usefixtures("other")
def test_an_experiment_is_started_on_a_batch_that_runs(client: TestClient, store: Store) -> None:
    """Requests that have a result take part too."""
    requests = [{"prompt": f"{i}", "max_tokens": 5, "expected": "yes"} for i in range(6)]
    batch_id = client.post("/v1/batch/async", json={"requests": requests}).json()["batch_id"]
    with store.transaction() as session:
        shard_id = session.scalars(select(ShardRow.id).order_by(ShardRow.id)).first()
        assert shard_id is not None
        claimed = held(store, shard_id)
        first = [result(claimed.requests[0].id, output="yes")]
        shards.save(session, [Progress(claimed, first, running_tokens=0, is_last=False)], lease=LEASE)
    body = {"batch_id": batch_id, "model": "small", "share": 1, "resolution": 0.1}
    started = client.post("/v1/experiments", json=body)
    assert (started.status_code, started.json()["requests"]) == (201, 6), started.text
    again = client.post("/v1/experiments", json=body)
    assert (again.status_code, "has an experiment" in again.json()["error"]["message"]) == (409, True)
    with store.transaction() as session:
        rest = [result(one.id, output="yes") for one in claimed.requests[1:]]
        shards.save(session, [Progress(claimed, rest, running_tokens=0, is_last=True)], lease=LEASE)
    run_all(store)
    sweep(store)
    found = client.get(f"/v1/experiments/{started.json()['experiment_id']}").json()
    assert (found["status"], found["judged"], found["agreement"]) == ("ended", 6, 1)
    assert client.get("/v1/audit").json()["data"][0]["act"] == "experiment.start"
    assert client.get(f"/v1/batch/{batch_id}").json()["status"] == "completed"
    late = client.post("/v1/experiments", json=body)
    assert (late.status_code, "has ended" in late.json()["error"]["message"]) == (409, True)
    none = client.post("/v1/experiments", json=body | {"batch_id": "batch_none"})
    assert (none.status_code, none.json()["error"]["param"]) == (404, "batch_id")


@pytest.mark.parametrize(("change", "param"), [({"mode": "ab"}, "mode"), ({"model": "nobodys"}, "model")])
def test_a_batch_that_runs_is_not_shared_out_again(
    client: TestClient, other: Model, change: dict[str, Any], param: str
) -> None:
    batch_id = client.post("/v1/batch/async", json={"prompts": ["x", "y"]}).json()["batch_id"]
    refused = client.post("/v1/experiments", json={"batch_id": batch_id, "model": other.name} | change)
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, param)


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


def run_each(store: Store, config: Settings, other: Model) -> None:
    """Have a worker of each of the two models run the shards that wait for it."""
    with store.transaction() as session:
        served = {
            one.fingerprint: models.register(session, ServedModel(one, "bfloat16", "f32"))
            for one in (identify(config.model), other)
        }
        ready = select(ShardRow.id, ShardRow.model_fingerprint).where(ShardRow.state == "ready")
        shard_rows = session.execute(ready).all()
    for shard_id, fingerprint in shard_rows:
        with store.transaction() as session:
            model = served[fingerprint]
            claimed = shards.claim(session, shard_id, worker="gpu@here", lease=LEASE, model=model)
            assert claimed is not None
            results = [result(one.id, output="yes") for one in claimed.requests]
            shards.save(session, [Progress(claimed, results, running_tokens=0, is_last=True)], lease=LEASE)


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


def test_a_repeated_submission_finds_its_experiment(client: TestClient, other: Model) -> None:
    body = {"prompts": ["a"], "experiment": {"model": other.name}}
    headers = {"Idempotency-Key": "once"}
    first, second = (client.post("/v1/batch/async", json=body, headers=headers).json() for _ in range(2))
    assert first["experiment_id"] == second["experiment_id"]
    assert len(client.get("/v1/experiments").json()["data"]) == 1


def test_the_other_model_is_promoted_and_rolled_back(client: TestClient, store: Store, other: Model) -> None:
    accepted = submit(client)
    batch, url = f"/v1/batch/{accepted['batch_id']}", f"/v1/experiments/{accepted['experiment_id']}"
    first = client.get(batch).json()["model"]
    promoted = client.post(f"{url}/promote")
    assert (promoted.status_code, promoted.json()["status"]) == (200, "promoted")
    assert client.get(batch).json()["model"]["revision"] == other.fingerprint
    assert client.post(f"{url}/promote").status_code == 409
    sweep(store)
    with store.transaction() as session:
        shadows = session.scalars(text("SELECT status FROM batches WHERE tenant_id LIKE 'shadow:%'")).all()
    assert shadows == ["cancelled"]
    assert client.post(f"{url}/rollback").json()["status"] == "rolled_back"
    assert client.get(batch).json()["model"] == first
    assert client.post(f"{url}/rollback").status_code == 409
    acts = [one["act"] for one in client.get("/v1/audit").json()["data"]]
    assert acts[:4] == ["experiment.roll_back", "batch.reassign", "experiment.promote", "batch.reassign"]


def test_a_running_experiment_is_rolled_back(client: TestClient, store: Store, other: Model) -> None:
    accepted = submit(client, model=other.label)
    url = f"/v1/experiments/{accepted['experiment_id']}"
    assert client.post(f"{url}/rollback").json()["status"] == "rolled_back"
    sweep(store)
    run_all(store)
    assert client.get(f"/v1/batch/{accepted['batch_id']}").json()["status"] == "completed"
    assert client.post(f"{url}/promote").status_code == 409
    for missing in ("/v1/experiments/experiment_none", f"{url}x"):
        assert client.get(missing).status_code == 404


@pytest.mark.usefixtures("other")
def test_a_batch_of_messages_has_an_experiment(client: TestClient) -> None:
    params = {"model": served(client), "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}
    body = {"requests": [{"custom_id": f"{i}", "params": params | {"temperature": i / 4}} for i in range(4)]}
    refused = client.post("/v1/messages/batches", json=body | {"experiment": {"model": "nobodys"}})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "experiment.model")
    made = client.post("/v1/messages/batches", json=body | {"experiment": {"model": "small", "share": 0.5}})
    assert made.status_code == 200, made.text
    found = client.get(f"/v1/experiments/{made.json()['experiment_id']}").json()
    assert (found["requests"], found["batch_id"]) == (2, made.json()["id"])
    assert (
        client.get(f"/v1/messages/batches/{made.json()['id']}").json()["experiment_id"]
        == found["experiment_id"]
    )
