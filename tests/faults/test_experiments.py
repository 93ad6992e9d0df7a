"""Experiments between two real workers, one of which is killed on the way."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.deployment import Deployment, deployment, eventually
from tests.fixtures.tiny_llama import write_tiny_llama

pytestmark = pytest.mark.slow

PROMPTS = [f"pack my box with {i} dozen " + "jumps over " * (i % 5) for i in range(120)]
OPTIONS = {"max_tokens": 40, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A deployment with a worker of each of two models of one tokenizer; "other" is the second."""
    folder = tmp_path_factory.mktemp("models")
    base = write_tiny_llama(folder / "base")
    other = write_tiny_llama(folder / "other", seed=1)
    options = {
        "HEADRACE_SHARD_SIZE": "4",
        "HEADRACE_SHARDS_IN_FLIGHT": "2",
        "HEADRACE_MAX_NUM_SEQUENCES": "4",
        "HEADRACE_SAVE_SECONDS": "0.1",
        "HEADRACE_DRAIN_SECONDS": "0.2",
    }
    with deployment(tmp_path_factory.mktemp("logs"), base, **options) as started:
        started.start_other(other)
        yield started


def right_outputs(running: Deployment) -> list[str]:
    """Return what the batch's own model answers."""
    batch_id = running.submit(prompts=PROMPTS, **OPTIONS)
    running.wait_for(batch_id)
    return [one["output"] for one in sorted(running.results(batch_id), key=lambda one: one["index"])]


def start(running: Deployment, expected: list[str], **experiment: Any) -> tuple[str, str]:
    """Submit an experiment, as soon as the other model is served; return the ids of batch and experiment."""
    requests = [
        {"prompt": prompt, "expected": {"match": "exact", "value": output}}
        for prompt, output in zip(PROMPTS, expected, strict=True)
    ]
    body = {"requests": requests, **OPTIONS, "experiment": {"model": "other", **experiment}}

    def accepted() -> dict[str, Any] | None:
        answer = running.client.post("/v1/batch/async", json=body)
        return answer.json() if answer.status_code == 202 else None

    found = eventually(accepted, what="a worker of the other model")
    return found["batch_id"], found["experiment_id"]


def ended(running: Deployment, experiment_id: str) -> dict[str, Any]:
    def view() -> dict[str, Any] | None:
        found = running.client.get(f"/v1/experiments/{experiment_id}").json()
        return found if found["status"] != "running" else None

    return dict(eventually(view, what="the end of the experiment"))


def test_a_worse_model_is_rolled_back_though_its_worker_was_killed(running: Deployment) -> None:
    expected = right_outputs(running)
    batch_id, experiment_id = start(running, expected, share=1)
    query = (
        "SELECT count(*) FROM results JOIN experiments ON shadow_id = results.batch_id"
        f" WHERE experiments.id = '{experiment_id}'"
    )
    eventually(lambda: running.sql(query)[0][0] > 0, what="a result of the other model")
    running.kill("other")
    running.start_other(Path(running.environment["HEADRACE_MODEL"]).with_name("other"))
    found = ended(running, experiment_id)
    assert (found["status"], found["verdict"]) == ("rolled_back", "worse")
    assert 0 < found["judged"] <= found["planned"]
    assert found["a"]["quality"] == 1
    running.wait_for(batch_id)
    results = sorted(running.results(batch_id), key=lambda one: one["index"])
    assert [one["output"] for one in results] == expected, "the other model's are never returned"
    assert {one["model"]["name"] for one in results} == {"base"}
    closed = f"SELECT closed_at IS NOT NULL FROM experiments WHERE id = '{experiment_id}'"
    eventually(lambda: running.sql(closed) == [(True,)], what="the end of the shadow")


def test_two_models_share_a_batch_until_one_is_worse(running: Deployment) -> None:
    expected = right_outputs(running)
    batch_id, experiment_id = start(running, expected, mode="ab", share=0.5)
    found = ended(running, experiment_id)
    assert (found["mode"], found["status"], found["verdict"]) == ("ab", "rolled_back", "worse")
    running.wait_for(batch_id)
    results = sorted(running.results(batch_id), key=lambda one: one["index"])
    made_by = Counter(one["model"]["name"] for one in results)
    assert sum(made_by.values()) == len(PROMPTS)
    assert 0 < made_by["other"] <= 60
    right = [one["output"] == output for one, output in zip(results, expected, strict=True)]
    assert Counter(right)[True] >= made_by["base"]
    assert all(
        is_right for one, is_right in zip(results, right, strict=True) if one["model"]["name"] == "base"
    )
