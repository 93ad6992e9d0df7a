"""A restart with another model in the middle of a batch: nothing of it is run by the other one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.deployment import Deployment, deployment, eventually
from tests.fixtures.tiny_llama import write_tiny_llama
from worker.contract.models import Model, identify

pytestmark = pytest.mark.slow

PROMPTS = [f"pack my box with {i} dozen " + "jumps over " * (i % 5) for i in range(120)]
BODY = {"prompts": PROMPTS, "max_tokens": 60, "ignore_eos": True, "temperature": 0}


@pytest.fixture
def models(tmp_path: Path) -> tuple[Path, Path]:
    one = write_tiny_llama(tmp_path / "one" / "demo")
    other = write_tiny_llama(tmp_path / "other" / "demo", seed=1, max_position_embeddings=96)
    return one, other


@pytest.fixture
def running(tmp_path: Path, models: tuple[Path, Path]) -> Iterator[Deployment]:
    options = {
        "HEADRACE_SHARD_SIZE": "4",
        "HEADRACE_SHARDS_IN_FLIGHT": "2",
        "HEADRACE_MAX_NUM_SEQUENCES": "4",
        "HEADRACE_SAVE_SECONDS": "0.1",
        "HEADRACE_CHECKPOINT_TOKENS": "8",
        "HEADRACE_DRAIN_SECONDS": "0.2",
    }
    with deployment(tmp_path, models[0], **options) as started:
        yield started


def restart(running: Deployment, directory: Path) -> None:
    for name in ("gpu", "web"):  # the worker first, so that it does not end the batch meanwhile
        running.stop(name)
    running.environment["HEADRACE_MODEL"] = str(directory)
    for name in ("web", "gpu"):
        running.start(name)
    running.wait_until_ready()


def made_by(running: Deployment, batch_id: str) -> dict[str, int]:
    found = running.sql(
        "SELECT coalesce(fingerprint, 'nobody'), count(*) FROM results"
        f" LEFT JOIN served_models ON served_models.id = model_id WHERE batch_id = '{batch_id}' GROUP BY 1"
    )
    return {str(fingerprint): int(count) for fingerprint, count in found}


def outputs_of(running: Deployment, batch_id: str) -> list[str]:
    running.wait_for(batch_id)
    return [one["output"] for one in sorted(running.results(batch_id), key=lambda one: one["index"])]


def revisions(results: list[dict[str, Any]]) -> set[str]:
    return {result["model"]["revision"] for result in results}


def test_a_restart_with_another_model_in_mid_batch(running: Deployment, models: tuple[Path, Path]) -> None:
    one, other = (identify(directory) for directory in models)
    whole = outputs_of(running, running.submit(**BODY))
    batch_id = running.submit(**BODY)
    eventually(lambda: len(running.results(batch_id)) >= len(PROMPTS) // 4, what="a quarter of the results")
    restart(running, models[1])
    before = made_by(running, batch_id)
    assert 0 < sum(before.values()) < len(PROMPTS), "the batch is in its middle"
    own = running.submit(**BODY)
    assert outputs_of(running, own) != whole, "the other model answers otherwise"
    assert made_by(running, own) == {other.fingerprint: len(PROMPTS)}
    waiting = running.batch(batch_id)["waiting"]
    assert (waiting["reason"], waiting["message"]) == ("no_worker", f"no worker serves {one.label}")
    assert made_by(running, batch_id) == before
    restart(running, models[0])
    outputs = outputs_of(running, batch_id)
    by_model = made_by(running, batch_id)
    num_wrong = sum(count for model, count in by_model.items() if model != one.fingerprint)
    num_equal = sum(mine == first for mine, first in zip(outputs, whole, strict=True))
    print(  # noqa: T201 - what the test is run for by hand
        f"\nresults by the wrong model: {num_wrong} of {len(PROMPTS)};"
        f" done before the restart: {sum(before.values())};"
        f" outputs equal to an undisturbed run: {num_equal} of {len(PROMPTS)}"
    )
    assert by_model == {one.fingerprint: len(PROMPTS)}
    assert outputs == whole
    assert revisions(running.results(batch_id)) == {one.fingerprint}
    assert revisions(running.results(own)) == {other.fingerprint}


def test_a_worker_of_each_model_on_one_database(running: Deployment, models: tuple[Path, Path]) -> None:
    """Each runs its own batches; interactive work goes to the API's own model; one is given to the other."""
    one, other = (identify(directory) for directory in models)
    mine = running.submit(**BODY)
    running.environment["HEADRACE_MODEL"] = str(models[1])
    running.environment |= {"HEADRACE_BATCH_POLICY": "fixed", "HEADRACE_BATCH_SIZE": "3"}
    running.processes["gpu of one"] = running.processes.pop("gpu")
    running.start("gpu")
    running.stop("web")
    running.start("web")
    running.wait_until_ready()
    theirs = running.submit(**BODY)
    text = running.client.post("/v1/generate", json={"prompt": "the quick", "max_tokens": 4})
    assert text.status_code == 200, text.text
    for batch_id, model in ((mine, one), (theirs, other)):
        running.wait_for(batch_id)
        assert made_by(running, batch_id) == {model.fingerprint: len(PROMPTS)}
    interactive = running.sql(
        "SELECT DISTINCT fingerprint FROM results JOIN served_models ON served_models.id = model_id"
        " JOIN batches ON batches.id = results.batch_id WHERE lane = 'interactive'"
    )
    assert interactive == [(other.fingerprint,)]
    info = running.client.get("/v1/model/info").json()
    assert info["workers"] == 1
    policy = info["details"]["batch_policy"]  # which has run the batch, in batches of 3
    assert (policy["name"], policy["max_items"], policy["window_seconds"]) == ("fixed", 3, 0.05)
    stopped = running.processes.pop("gpu of one")
    stopped.terminate()
    stopped.wait(60)
    given = adopted(running, one)
    assert running.wait_for(given)["counts"]["completed"] == len(PROMPTS)
    assert made_by(running, given) == {other.fingerprint: len(PROMPTS)}


def adopted(running: Deployment, old: Model) -> str:
    """Have a batch that waits for `old` be given to the model that is served, and return its id."""
    running.stop("gpu")  # so that it does not run the batch before it waits for `old`
    batch_id = running.submit(**BODY | {"max_tokens": 8})
    for table, column in (("batches", "id"), ("shards", "batch_id")):
        running.sql(
            f"UPDATE {table} SET model_fingerprint = '{old.fingerprint}'"
            f" WHERE {column} = '{batch_id}' RETURNING id"
        )
    running.start("gpu")
    eventually(lambda: running.client.get("/v1/model/info").is_success, what="the worker")
    assert running.batch(batch_id)["waiting"]["message"] == f"no worker serves {old.label}"
    found = running.client.post(f"/v1/batch/{batch_id}/reassign", json={"model": "demo"})
    assert found.status_code == 200, found.text
    return batch_id
