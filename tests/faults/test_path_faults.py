"""What QUEUE's promises come to when a part dies in the middle of a batch: nothing lost, nothing twice."""

import json
import signal

import pytest

from tests.fixtures.deployment import Deployment, eventually
from tests.fixtures.receiver import Receiver, receiver
from worker.loops import EXIT_LOOP_FAILED

pytestmark = pytest.mark.slow

NUM_REQUESTS = 400
NUM_RESPONSES = 6
PROMPTS = [f"pack my box with {i} dozen" for i in range(NUM_REQUESTS)]
OUTPUT_TOKENS = 100


def submit(running: Deployment, hook: Receiver, output_tokens: int = OUTPUT_TOKENS) -> str:
    return running.submit(
        prompts=PROMPTS, max_tokens=output_tokens, temperature=0, ignore_eos=True, callback_url=hook.url
    )


def check_whole(
    running: Deployment, hook: Receiver, batch_id: str, output_tokens: int = OUTPUT_TOKENS
) -> None:
    """Every request has one result, the counts add up, and the receiver heard of it once."""
    batch = running.wait_for(batch_id)
    assert batch["counts"] == {
        "total": NUM_REQUESTS,
        "pending": 0,
        "completed": NUM_REQUESTS,
        "failed": 0,
        "cancelled": 0,
    }
    results = running.results(batch_id)
    assert sorted(result["index"] for result in results) == list(range(NUM_REQUESTS))
    assert [result["sequence"] for result in results] == list(range(1, NUM_REQUESTS + 1))
    assert {result["usage"]["output_tokens"] for result in results} == {output_tokens}
    calls = hook.wait_for(1)
    assert {json.loads(body)["batch_id"] for _, body in calls} == {batch_id}
    assert len({headers["webhook-id"] for headers, _ in calls}) == 1
    unfinished = f"SELECT count(*) FROM shards WHERE batch_id = '{batch_id}' AND state <> 'finished'"
    assert running.sql(unfinished) == [(0,)]


def test_kill_9_of_the_gpu_worker_in_the_middle(running: Deployment) -> None:
    with receiver() as hook:
        batch_id = submit(running, hook)
        running.wait_for_progress(batch_id, 0.2)
        running.kill_in_a_shard()
        assert running.batch(batch_id)["status"] == "processing"
        running.start("gpu")
        check_whole(running, hook, batch_id)
    again = f"SELECT count(*) > 0 FROM shards WHERE batch_id = '{batch_id}' AND attempts > 1"
    assert running.sql(again) == [(True,)]


def test_flushall_in_the_middle(running: Deployment) -> None:
    with receiver() as hook:
        batch_id = submit(running, hook)
        running.wait_for_progress(batch_id, 0.2)
        with running.redis() as redis:
            redis.flushall()
        assert running.client.post("/v1/batch/async", json={"prompts": ["x"]}).status_code == 202
        check_whole(running, hook, batch_id)


def test_sigterm_hands_back_and_another_worker_goes_on_at_once(running: Deployment) -> None:
    # Celery may hear a SIGTERM two seconds late, in which a fast processor answers most of the usual batch.
    output_tokens = 220
    with receiver() as hook:
        batch_id = submit(running, hook, output_tokens)
        running.wait_for_progress(batch_id, 0.05)
        assert running.stop("gpu") == 0
        assert running.batch(batch_id)["status"] == "processing"
        held = running.sql("SELECT count(*) FROM shards WHERE state = 'running'")
        assert held == [(0,)], "a lease outlived the drain"
        running.start("gpu")
        check_whole(running, hook, batch_id, output_tokens)


def test_a_loop_that_fails_ends_its_worker_and_another_goes_on(running: Deployment) -> None:
    running.stop("gpu")
    running.start("gpu", app="tests.faults.failing_loop_worker")
    with receiver() as hook:
        batch_id = submit(running, hook)
        assert running.processes["gpu"].wait(120) == EXIT_LOOP_FAILED, running.log("gpu")
        failed = "the loop leases failed, so this process ends: LookupError: a mistake of the program"
        assert failed in running.log("gpu")
        running.start("gpu")
        check_whole(running, hook, batch_id)


def test_the_dispatcher_may_die_or_be_doubled(running: Deployment) -> None:
    with receiver() as hook:
        batch_id = submit(running, hook)
        running.wait_for_progress(batch_id, 0.1)
        running.kill("dispatcher")
        running.start("dispatcher")
        first = running.processes["dispatcher"]
        running.start("dispatcher")
        check_whole(running, hook, batch_id)
        first.kill()
        first.wait()


def test_a_callback_outlives_the_worker_that_sends_it(running: Deployment) -> None:
    running.kill("callbacks")
    with receiver() as hook:
        batch_id = submit(running, hook)
        running.wait_for(batch_id)
        assert hook.calls == []
        running.start("callbacks")
        check_whole(running, hook, batch_id)


def test_a_stream_without_a_seed_goes_on_where_a_dead_worker_left_it(running: Deployment) -> None:
    (model,) = running.client.get("/v1/models").json()["data"]
    body = {
        "model": model["id"],
        "prompt": "x",
        "max_tokens": 100,
        "n": 64,
        "temperature": 1.0,
        "stream": True,
    }
    with running.client.stream("POST", "/v1/completions", json=body | {"ignore_eos": True}) as stream:
        lines = (line.removeprefix("data: ") for line in stream.iter_lines() if line)
        told = [next(lines)]
        running.kill_in_a_shard()
        running.start("gpu")
        told += lines
    assert told.pop() == "[DONE]"
    texts = [""] * 64
    for event in map(json.loads, told):
        assert "error" not in event
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    batch_id = "batch_" + json.loads(told[0])["id"].removeprefix("cmpl-").rpartition("-")[0]
    (result,) = running.results(batch_id)
    assert texts == [choice["text"] for choice in result["choices"]]
    assert len(set(texts)) > 1
    assert running.sql(f"SELECT attempts FROM shards WHERE batch_id = '{batch_id}'") == [(2,)]


def test_background_responses_outlive_their_worker(running: Deployment) -> None:
    """Several, as one is so short that it may have ended before the worker can be killed."""
    (model,) = running.client.get("/v1/models").json()["data"]
    body = {"model": model["id"], "input": "x", "max_output_tokens": 200, "ignore_eos": True}
    body |= {"temperature": 0}
    whole = running.client.post("/v1/responses", json=body).json()
    body |= {"background": True}

    def send(key: str) -> str:
        answer = running.client.post("/v1/responses", json=body, headers={"Idempotency-Key": key})
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    running.processes["gpu"].send_signal(signal.SIGSTOP)
    begun = [send(f"k{i}") for i in range(NUM_RESPONSES)]
    running.kill_in_a_shard()
    paths = [f"/v1/responses/{response_id}" for response_id in begun]
    cut_off = [path for path in paths if running.client.get(path).json()["status"] == "in_progress"]
    assert cut_off, "none was cut off"
    running.start("gpu")
    for path in paths:
        eventually(lambda path=path: running.client.get(path).json()["status"] == "incomplete", what=path)
        done = running.client.get(path).json()
        assert done["incomplete_details"] == {"reason": "max_output_tokens"}
        assert done["usage"]["output_tokens"] == 200
        assert [item["content"] for item in done["output"]] == [item["content"] for item in whole["output"]]
        assert "response.incomplete" in running.client.get(path, params={"stream": "true"}).text
    assert [send(f"k{i}") for i in range(NUM_RESPONSES)] == begun
    ids = ", ".join(f"'batch_{response_id.removeprefix('resp_')}'" for response_id in begun)
    ((again,),) = running.sql(f"SELECT count(*) FROM shards WHERE batch_id IN ({ids}) AND attempts > 1")
    assert 1 <= again <= len(cut_off)
