"""An experiment over HTTP: asked for with a batch, looked at, promoted, rolled back."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, text

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


@pytest.fixture
def other(store: Store, config: Settings) -> Model:
    """Another model with the served one's tokenizer, which a live worker serves."""
    return serve_other(store, config)


def serve_other(store: Store, config: Settings) -> Model:
    """Have a live worker serve another model with the served one's tokenizer."""
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
