"""One batch whose requests name several models: each runs on its own, and is counted so."""

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from api.dependencies import Services
from api.files.reading import BatchReader
from api.files.writing import ResultWriter
from api.inputs.checkpoint import ModelDirectoryError
from api.main import create_app
from tests.fixtures.batches import LEASE, result
from tests.fixtures.checkpoint import TEMPLATE, write_checkpoint
from tests.fixtures.inputs import line
from tests.fixtures.measured import measured_worker
from worker.contract.models import Model, ServedModel, identify
from worker.settings import Settings
from worker.store.batches import batches
from worker.store.database.session import Store
from worker.store.files import batch_files
from worker.store.requests import models
from worker.store.shards import counting, shards
from worker.store.shards.shards import Progress
from worker.store.watching import outlook, queue_depth, queueing, scaling, workers
from worker.values.outcomes import Outcome

LONG, SHORT = 64, 32


@pytest.fixture
def directories(tmp_path: Path) -> tuple[Path, Path]:
    found = tmp_path / "long", tmp_path / "short"
    for directory, context in zip(found, (LONG, SHORT), strict=True):
        directory.mkdir()
        write_checkpoint(directory, chat_template=TEMPLATE)
        config = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps(config | {"max_position_embeddings": context}))
    return found


@pytest.fixture
def config(tmp_path: Path, directories: tuple[Path, Path]) -> Settings:
    return Settings(
        model=directories[0],
        models=directories,
        model_aliases={"gpt-4o": "long", "gpt-4o-mini": "short"},
        data_dir=tmp_path / "data",
        shard_size=2,
    )


@pytest.fixture
def client(store: Store, config: Settings) -> Iterator[TestClient]:  # noqa: ARG001 - empties the tables
    with TestClient(create_app(config), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def services(client: TestClient) -> Services:
    found: Services = client.app.state.services  # type: ignore[attr-defined]
    return found


@pytest.fixture
def both(directories: tuple[Path, Path]) -> tuple[Model, Model]:
    one, other = map(identify, directories)
    return one, other


def sql(store: Store, query: str) -> list[tuple[Any, ...]]:
    with store.transaction() as session:
        return [tuple(row) for row in session.execute(text(query))]


def models_of(store: Store) -> dict[int, str]:
    """Return the model that each request waits for, or that has run it, by position."""
    query = "SELECT requests.position, model_fingerprint FROM requests JOIN shards ON shards.id = shard_id"
    return dict(sql(store, query))  # type: ignore[arg-type]


def seen(store: Store, model: Model) -> None:
    info = {"name": model.name, "model_fingerprint": model.fingerprint, "max_model_len": LONG}
    info["model_tokenizer"] = model.tokenizer
    with store.transaction() as session:
        workers.seen(
            session, name=f"gpu@{model.name}", queue="gpu", slots=4, info=info, model=model.fingerprint
        )


def run(store: Store, model: Model, *, outcome: Outcome = Outcome.COMPLETED) -> int:
    """Run every shard that a worker of this model may claim; return how many results it has made."""
    num_results = 0
    with store.transaction() as session:
        served = models.register(session, ServedModel(model, "float32", "f32"))
    for (shard_id,) in sql(store, "SELECT id FROM shards WHERE state = 'ready' ORDER BY id"):
        with store.transaction() as session:
            held = shards.claim(session, shard_id, worker=f"gpu@{model.name}", lease=LEASE, model=served)
        if held is None:
            continue
        made = [
            result(one.id, output=f"{model.name}: {one.prompts[0]}", outcome=outcome) for one in held.requests
        ]
        with store.transaction() as session:
            shards.save(session, [Progress(held, made, running_tokens=0, is_last=True)], lease=LEASE)
        counting.follow(store, held.batch_id)
        num_results += len(made)
    return num_results


def submit(client: TestClient, requests: list[dict[str, Any]], status: int = 202, **fields: Any) -> Any:
    answer = client.post("/v1/batch/async", json={"requests": requests} | fields)
    assert answer.status_code == status, answer.text
    return answer.json()["batch_id"] if status == 202 else answer.json()["error"]


def shown(client: TestClient, batch_id: str) -> dict[str, Any]:
    return dict(client.get(f"/v1/batch/{batch_id}").json())


def parts(client: TestClient, batch_id: str) -> dict[str, dict[str, Any]]:
    return {part["name"]: part for part in shown(client, batch_id)["models"]}


TWO = [{"prompt": "same"}, {"prompt": "same", "model": "short"}, {"prompt": "b", "model": "gpt-4o-mini"}]


def test_each_request_runs_on_the_model_that_it_names(
    client: TestClient, store: Store, both: tuple[Model, Model]
) -> None:
    long, short = both
    batch_id = submit(client, TWO, max_tokens=5)
    expected = {0: long.fingerprint, 1: short.fingerprint, 2: short.fingerprint}
    assert models_of(store) == expected
    assert run(store, short) == 2
    found = parts(client, batch_id)
    assert (found["short"]["counts"]["completed"], found["long"]["counts"]["pending"]) == (2, 1)
    assert run(store, long) == 1
    done = shown(client, batch_id)
    assert (done["status"], done["counts"]["completed"]) == ("completed", 3)
    results = client.get(f"/v1/batch/{batch_id}/results?order=input").json()["data"]
    assert [(one["output"], one["model"]["name"]) for one in results] == [
        ("long: same", "long"),
        ("short: same", "short"),
        ("short: b", "short"),
    ]
    tokens = {part["name"]: (part["input_tokens"], part["output_tokens"]) for part in done["models"]}
    assert tokens == {"short": (6, 14), "long": (3, 7)}
    assert sum(part["cost"]["amount"] for part in done["models"]) == pytest.approx(
        done["usage"]["cost"]["amount"]
    )
    used = (
        "SELECT model, sum((readings->>'requests_completed')::int) FROM usage GROUP BY model ORDER BY model"
    )
    assert sql(store, used) == sorted([(long.fingerprint, 1), (short.fingerprint, 2)])


def test_the_batch_names_a_model_for_requests_that_name_none(client: TestClient, store: Store) -> None:
    batch_id = submit(client, [{"prompt": "a"}, {"prompt": "b", "model": "gpt-4o-mini"}], model="short")
    found = shown(client, batch_id)
    assert (found["model"]["name"], found["models"]) == ("short", None)
    assert len(set(models_of(store).values())) == 1
    prompts = client.post("/v1/batch/async", json={"prompts": ["a"], "model": "short"}).json()["batch_id"]
    assert shown(client, prompts)["model"]["name"] == "short"


def test_a_request_is_checked_against_its_own_model(client: TestClient) -> None:
    assert submit(client, [{"prompt": "a" * 40}])
    error = submit(client, [{"prompt": "a"}, {"prompt": "a" * 40, "model": "short"}], status=422)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "requests[1]")
    error = submit(client, [{"prompt": "a"}, {"prompt": "a", "model": "none"}], status=404)
    assert (error["code"], error["param"]) == ("model_not_found", "requests[1].model")
    assert "'long', 'short'" in error["message"]
    error = submit(client, TWO, status=422, experiment={"model": "short"})
    assert "one" in error["message"]


def file_of(names: list[str]) -> bytes:
    made = (
        {"model": name, "prompt": f"p{i % 2}", "max_tokens": 5, "temperature": 0}
        for i, name in enumerate(names)
    )
    return b"".join(line(f"row-{i}", body=body) for i, body in enumerate(made))


def upload(client: TestClient, names: list[str], status: int = 200, **fields: Any) -> Any:
    put = client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", file_of(names))})
    assert put.status_code == status, put.text
    if status != 200:
        return put.json()
    body = {"endpoint": "/v1/completions", "completion_window": "24h", "input_file_id": put.json()["id"]}
    made = client.post("/v1/batches", json=body | fields)
    assert made.status_code == 200, made.text
    return made.json()["id"]


NAMES = ["long", "short", "gpt-4o-mini", "gpt-4o", "short", "long", "short"]


def test_lines_of_one_file_name_several_models(
    client: TestClient, store: Store, services: Services, both: tuple[Model, Model]
) -> None:
    long, short = both
    batch_id = upload(client, NAMES)
    reader, writer = BatchReader(services, Event()), ResultWriter(services, Event())
    assert reader.turn()
    named = [short if name in {"short", "gpt-4o-mini"} else long for name in NAMES]
    assert models_of(store) == {i: model.fingerprint for i, model in enumerate(named)}
    # Equal prompts for one model run once; those for the other are none of their copies.
    assert (run(store, long), run(store, short)) == (2, 2)
    assert writer.turn()
    done = client.get(f"/v1/batches/{batch_id}").json()
    assert done["status"] == "completed"
    lines = client.get(f"/v1/files/{done['output_file_id']}/content").text.splitlines()
    answers = {one["custom_id"]: one["response"]["body"] for one in map(json.loads, lines)}
    for i, model in enumerate(named):
        body = answers[f"row-{i}"]
        assert (body["model"], body["choices"][0]["text"]) == (model.name, f"{model.name}: p{i % 2}")
        assert body["system_fingerprint"].startswith(model.fingerprint)
    assert {name: part["counts"]["completed"] for name, part in parts(client, batch_id).items()} == {
        "short": 4,
        "long": 3,
    }


def test_identical_lines_of_later_chunks_join_those_of_their_model(
    client: TestClient,
    store: Store,
    services: Services,
    both: tuple[Model, Model],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("api.files.reading.CHUNK_LINES", 2)
    monkeypatch.setattr("api.files.reading.MAX_CHUNK_LINES", 2)
    names = ["long", "long", "short", "short", "long", "long", "short", "short"]
    upload(client, names)
    reader = BatchReader(services, Event())
    while reader.turn():
        pass
    by_name = {model.name: model.fingerprint for model in both}
    assert models_of(store) == {i: by_name[name] for i, name in enumerate(names)}
    assert sql(store, "SELECT num_requests FROM shards") == [(4,), (4,)]


def test_a_file_of_the_other_model_alone_is_its_batch(
    client: TestClient, store: Store, services: Services, both: tuple[Model, Model]
) -> None:
    batch_id = upload(client, ["short"] * 3)
    found = shown(client, batch_id)
    assert (found["model"]["name"], found["models"]) == ("short", None)
    assert BatchReader(services, Event()).turn()
    assert set(models_of(store).values()) == {both[1].fingerprint}


def test_a_line_that_names_no_served_model_is_named(client: TestClient) -> None:
    refused = upload(client, ["long", "none", "short"], status=400)
    (told,) = refused["error"]["lines"]
    assert (told["line"], told["code"]) == (2, "model_not_found")


def test_an_experiment_is_on_a_batch_of_one_model(client: TestClient) -> None:
    put = client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", file_of(NAMES))})
    body = {"endpoint": "/v1/completions", "completion_window": "24h", "input_file_id": put.json()["id"]}
    answer = client.post("/v1/batches", json=body | {"experiment": {"model": "short"}})
    assert answer.status_code == 400, answer.text
    assert "several models" in answer.json()["error"]["message"]
    answer = client.post("/v1/experiments", json={"batch_id": submit(client, TWO), "model": "short"})
    assert (answer.status_code, "several models" in answer.text) == (409, True)


def test_another_models_process_leaves_a_mixed_file_alone(
    client: TestClient, store: Store, both: tuple[Model, Model]
) -> None:
    upload(client, ["long", "short"])
    with store.transaction() as session:
        assert batch_files.claim_to_read(session, lease=LEASE, models=both[:1]) is None
        assert batch_files.claim_to_read(session, lease=LEASE, models=both[1:]) is None
        assert batch_files.claim_to_read(session, lease=LEASE, models=both) is not None


def test_an_estimate_sums_up_its_models(client: TestClient, store: Store, both: tuple[Model, Model]) -> None:
    asked = {"requests": TWO, "max_tokens": 10, "ignore_eos": True, "completion_window": "2s"}
    measured_worker(store, "gpu@long", model=both[0].fingerprint)
    found = client.post("/v1/batch/estimate", json=asked).json()
    assert [(part["name"], part["requests"]) for part in found["models"]] == [("long", 1), ("short", 2)]
    assert (found["requests"], found["duplicates"], found["finish"]) == (3, 0, None)
    measured_worker(store, "gpu@short", model=both[1].fingerprint, step=1.0)
    found = client.post("/v1/batch/estimate", json=asked).json()
    ends = [part["finish"] for part in found["models"]]
    assert (found["finish"], [end["fits_window"] for end in ends]) == (ends[1], [True, False])
    sums = sum(part["cost_units"]["expected"] for part in found["models"])
    assert found["cost_units"]["expected"] == pytest.approx(sums, abs=0.002)


def test_each_part_says_what_it_waits_for(
    client: TestClient, store: Store, both: tuple[Model, Model]
) -> None:
    long, short = both
    batch_id = submit(client, TWO)
    seen(store, long)
    found = shown(client, batch_id)
    assert found["waiting"]["reason"] == "starting"
    waiting = {name: part["waiting"] for name, part in parts(client, batch_id).items()}
    assert waiting["long"]["reason"] == "starting"
    assert waiting["short"]["message"] == f"no worker serves {short.label}"
    run(store, long)
    assert parts(client, batch_id)["long"]["waiting"] is None
    assert shown(client, batch_id)["waiting"]["message"] == f"no worker serves {short.label}"


def test_work_is_seen_by_model(client: TestClient, store: Store, both: tuple[Model, Model]) -> None:
    long, short = both
    submit(client, TWO, max_tokens=5)
    submit(client, [{"prompt": "z", "model": "short"}], max_tokens=5, priority=-1)

    def look() -> tuple[Any, ...]:
        with store.look() as session:
            waiting = {one.name for one in scaling.waiting_models(session)}
            backlogs = [outlook.backlog(session, model=one.fingerprint) for one in both]
            live = [outlook.live_batches(session, limit=9, model=one.fingerprint) for one in both]
            ahead = queueing.ahead_of(session, priority=-1, expires_at=None, model=long.fingerprint)
            aged = {age.model for age in queue_depth.queue_ages(session)}
        assert [sum(view.num_pending for view in found) for found in live] == [
            backlog.num_requests for backlog in backlogs
        ]
        sums = [(one.num_batches, one.num_requests, one.max_output_tokens) for one in backlogs]
        return waiting, sums, ahead.num_requests, aged

    everything = {long.label, short.label}
    assert look() == ({"long", "short"}, [(1, 1, 5), (2, 3, 15)], 1, everything)
    run(store, long)
    assert look() == ({"short"}, [(0, 0, 0), (2, 3, 15)], 0, {short.label})


def test_a_retry_names_the_same_models(client: TestClient, store: Store, both: tuple[Model, Model]) -> None:
    long, short = both
    batch_id = submit(client, [*TWO, {"prompt": "c"}], max_tokens=5)
    run(store, long)
    run(store, short, outcome=Outcome.FAILED)
    again = client.post(f"/v1/batch/{batch_id}/retry").json()["batch_id"]
    assert {name: part["counts"]["total"] for name, part in parts(client, again).items()} == {"short": 2}
    assert (run(store, long), run(store, short)) == (0, 2)
    assert shown(client, again)["status"] == "completed"


def test_the_rest_of_a_mixed_batch_is_given_to_one_model(
    client: TestClient, store: Store, both: tuple[Model, Model]
) -> None:
    long, short = both
    batch_id = submit(client, [*TWO, {"prompt": "d"}, {"prompt": "e"}], max_tokens=5)
    run(store, short)
    found = client.post(f"/v1/batch/{batch_id}/reassign", json={"model": "short"})
    assert found.status_code == 200, found.text
    counts = {name: part["counts"] for name, part in parts(client, batch_id).items()}
    assert {name: (one["total"], one["pending"]) for name, one in counts.items()} == {
        "short": (5, 3),
        "long": (0, 0),
    }
    assert (run(store, long), run(store, short)) == (0, 3)
    assert shown(client, batch_id)["status"] == "completed"


def test_every_model_is_listed_and_may_be_asked_for(
    client: TestClient, store: Store, both: tuple[Model, Model]
) -> None:
    seen(store, both[1])
    listed = {one["id"]: one["status"] for one in client.get("/v1/models").json()["data"]}
    assert listed == {"long": "unserved", "gpt-4o": "unserved", "short": "loaded", "gpt-4o-mini": "loaded"}
    assert client.get("/v1/models/gpt-4o-mini").json()["root"] == "short"
    body = {"prompt": "a" * 40, "model": "short"}
    answer = client.post("/v1/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    counted = client.post("/tokenize", json={"model": "gpt-4o-mini", "prompt": "a"})
    assert counted.json()["max_model_len"] == SHORT


def test_two_models_of_one_name_are_refused(config: Settings) -> None:
    aliases = {"short": "long"}
    with pytest.raises(ModelDirectoryError, match="has the name 'short' too"):
        create_app(config.model_copy(update={"model_aliases": aliases}))


def test_a_batch_ends_once_all_its_models_are_done(
    client: TestClient, store: Store, both: tuple[Model, Model]
) -> None:
    batch_id = submit(client, TWO)
    run(store, both[0])
    assert client.post(f"/v1/batch/{batch_id}/cancel").status_code in {200, 202}
    with store.transaction() as session:
        row = batches.lock(session, batch_id)
        assert row is not None
        batches.settle(session, row)
    found = shown(client, batch_id)
    assert (found["status"], found["counts"]["cancelled"]) == ("cancelled", 2)
    assert parts(client, batch_id)["short"]["counts"]["cancelled"] == 2
