"""An experiment over HTTP: asked for with a batch, looked at, promoted, rolled back."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, text

from tests.api.batches.test_models import seen
from tests.fixtures.batches import LEASE, held, result
from worker.contract.models import Model, identify
from worker.settings import Settings
from worker.store.database.session import Store
from worker.store.experiments import experiments
from worker.store.rows.shards import ShardRow
from worker.store.shards import shards
from worker.store.shards.shards import Progress


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
