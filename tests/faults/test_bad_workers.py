"""Workers that hang or die of what they run: the rest of their work is done, and the bad request is found."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.deployment import Deployment, deployment, eventually
from tests.fixtures.tiny_llama import write_tiny_llama

pytestmark = pytest.mark.slow
EXIT_ENGINE_FAILED = 70


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Deployment]:
    model = write_tiny_llama(tmp_path / "model")
    options = {
        "HEADRACE_SHARD_SIZE": "2",
        "HEADRACE_STEP_TIMEOUT_SECONDS": "5",
        "HEADRACE_LEASE_SECONDS": "2",
        "HEADRACE_SAVE_SECONDS": "0.1",
        "HEADRACE_CHECKPOINT_TOKENS": "4",
        "HEADRACE_MAX_NUM_SEQUENCES": "4",
    }
    with deployment(tmp_path, model, **options) as started:
        yield started


def test_a_step_that_hangs_ends_the_worker_and_another_does_its_work(running: Deployment) -> None:
    assert running.stop("gpu") == 0
    running.start("gpu", app="tests.faults.hung_worker")
    batch_id = running.submit(prompts=["a", "b", "c"], max_tokens=3)
    hung = running.processes["gpu"]
    assert hung.wait(60) == EXIT_ENGINE_FAILED, running.log("gpu")
    assert "no engine step" in running.log("gpu")
    running.start("gpu")
    assert running.wait_for(batch_id)["counts"]["completed"] == 3
    tries = [one["attempts"] for one in running.results(batch_id)]
    assert {attempt["cause"] for one in tries for attempt in one} == {"worker_lost"}


def test_a_crash_costs_only_what_was_generated_since_the_last_save(running: Deployment) -> None:
    prompts = [f"pack my box with {i} dozen" for i in range(24)]
    body = {"prompts": prompts, "max_tokens": 100, "ignore_eos": True, "temperature": 1.0, "seed": 7}
    whole = running.wait_for(running.submit(**body))["outputs"]
    batch_id = running.submit(**body)
    kept = "SELECT count(*) FROM partial_outputs WHERE cardinality(token_ids) < 100"
    eventually(lambda: running.sql(kept) > [(0,)], what="a long output that is saved")
    running.kill_in_a_shard()
    resumable = running.sql(kept)
    running.start("gpu")
    assert running.wait_for(batch_id)["outputs"] == whole
    assert resumable > [(0,)], "the worker died with nothing saved"
    tries = [one["attempts"] for one in running.results(batch_id)]
    assert any(attempt["cause"] == "worker_lost" for one in tries for attempt in one)


def test_a_request_that_kills_its_workers_fails_alone(running: Deployment) -> None:
    running.stop("gpu")
    batch_id = running.submit(prompts=["a", "b", "poison", "d", "e", "f"], max_tokens=3)

    def ended() -> bool:
        if "gpu" not in running.processes or running.processes["gpu"].poll() is not None:
            running.start("gpu", app="tests.faults.poisoned_worker")
        return running.batch(batch_id)["status"] == "completed"

    eventually(ended, seconds=300, what="the end of the batch")
    results = {one["index"]: one for one in running.results(batch_id)}
    assert {index for index, one in results.items() if one["status"] == "failed"} == {2}
    assert results[2]["error"]["code"] == "worker_lost"
    assert len(results[2]["attempts"]) == 5, "two of its shard, one alone in it, two of it alone"
    assert [results[index]["status"] for index in (0, 1, 3, 4, 5)] == ["completed"] * 5
