import json
import struct
from dataclasses import replace

from fastapi.testclient import TestClient

from tests.fixtures.batches import LEASE, held, result, run_to_the_end, submit
from worker.store.database.session import Store
from worker.store.shards import shards
from worker.store.shards.shards import Progress
from worker.values.logprobs import TokenLogprob
from worker.values.outcomes import FinishReason
from worker.values.results import Choice, ContinuationScore, Payload


def test_a_batch_shows_where_it_stands(client: TestClient, store: Store) -> None:
    batch_id = submit(store, num_requests=4, callback_url="https://example.com/hook", metadata={"k": "v"})
    run_to_the_end(store, held(store, 2))
    answer = client.get(f"/v1/batch/{batch_id}").json()
    assert answer["status"] == "processing"
    assert answer["progress"] == 0.5
    assert answer["counts"] == {"total": 4, "pending": 2, "completed": 2, "failed": 0, "cancelled": 0}
    assert answer["outputs"] == [None, None, "out prompt 2", "out prompt 3"]
    assert answer["usage"]["total_tokens"] == 20
    assert answer["eta_seconds"] is not None
    assert answer["callback"] == {
        "url": "https://example.com/hook",
        "event_id": None,
        "state": None,
        "attempts": 0,
        "last_status_code": None,
        "last_error": None,
    }
    run_to_the_end(store, held(store, 1))
    done = client.get(f"/v1/batch/{batch_id}", params={"include": "none"}).json()
    assert (done["status"], done["outputs"], done["callback"]["state"]) == ("completed", None, "pending")


def test_a_large_batch_keeps_its_outputs_to_the_results_route(client: TestClient, store: Store) -> None:
    batch_id = submit(store, num_requests=101, shard_size=101)
    assert client.get(f"/v1/batch/{batch_id}").json()["outputs"] is None


def test_results_are_readable_while_the_batch_runs(client: TestClient, store: Store) -> None:
    batch_id = submit(store, num_requests=4)
    url = f"/v1/batch/{batch_id}/results"
    nothing = {"object": "list", "data": [], "next": 0, "has_more": False, "status": "pending"}
    assert client.get(url).json() == nothing
    run_to_the_end(store, held(store, 2))
    page = client.get(url).json()
    assert [result["index"] for result in page["data"]] == [2, 3]
    assert (page["next"], page["has_more"], page["status"]) == (2, False, "processing")
    run_to_the_end(store, held(store, 1))
    page = client.get(url, params={"after": page["next"], "limit": 1}).json()
    assert ([result["index"] for result in page["data"]], page["next"], page["has_more"]) == ([0], 3, True)
    page = client.get(url, params={"after": 3}).json()
    assert ([result["index"] for result in page["data"]], page["next"], page["has_more"]) == ([1], 4, False)
    assert page["status"] == "completed"
    usage = page["data"][0]["usage"]
    assert (usage["input_tokens"], usage["cached_tokens"], usage["output_tokens"]) == (3, 1, 7)


def test_results_come_as_json_lines_on_request(client: TestClient, store: Store) -> None:
    batch_id = submit(store, num_requests=4)
    run_to_the_end(store, held(store, 1))
    answer = client.get(f"/v1/batch/{batch_id}/results", headers={"accept": "application/x-ndjson"})
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert [json.loads(line)["index"] for line in answer.text.splitlines()] == [0, 1]


def test_following_ends_with_the_batch(client: TestClient, store: Store) -> None:
    batch_id = submit(store, num_requests=2)
    run_to_the_end(store, held(store, 1))
    answer = client.get(f"/v1/batch/{batch_id}/results", params={"follow": 1})
    assert [json.loads(line)["sequence"] for line in answer.text.splitlines()] == [1, 2]


def test_cancel_and_stats(client: TestClient, store: Store) -> None:
    batch_id = submit(store)
    submit(store)
    answer = client.post(f"/v1/batch/{batch_id}/cancel")
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    assert client.post(f"/v1/batch/{batch_id}/cancel").json()["status"] == "cancelled"
    stats = client.get("/v1/batch/stats").json()
    assert stats["total_batches"] == 2
    assert (stats["cancelled"], stats["pending"], stats["completed"]) == (1, 1, 0)


def test_what_does_not_exist_is_404(client: TestClient) -> None:
    for method, path in [
        ("GET", "/v1/batch/batch_nope"),
        ("GET", "/v1/batch/batch_nope/results"),
        ("GET", "/v1/batch/batch_nope/results?follow=1"),
        ("POST", "/v1/batch/batch_nope/cancel"),
        ("GET", "/v1/nope"),
    ]:
        answer = client.request(method, path)
        assert answer.status_code == 404, path
        assert answer.json()["error"]["message"]


def test_bad_cursors_are_refused(client: TestClient, store: Store) -> None:
    batch_id = submit(store)
    for query in (
        "after=-1",
        "after=x",
        f"after={2**63}",
        "limit=0",
        "limit=1001",
        "follow=maybe",
        "wait=61",
        "wait=nan",
    ):
        answer = client.get(f"/v1/batch/{batch_id}/results?{query}")
        assert answer.status_code == 422, query
        assert answer.json()["error"]["param"] == query.partition("=")[0]
    assert client.get("/v1/batch/a%00b").status_code in {404, 422}


def test_what_an_output_cannot_say_is_read_with_the_results(client: TestClient, store: Store) -> None:
    batch_id = submit(store, num_requests=3, shard_size=3)
    claimed = held(store, 1)
    logprobs = (TokenLogprob(65, -0.5, ((65, -0.5), (66, -1.0))),)
    payloads = [
        Payload((Choice("a", FinishReason.STOP, logprobs), Choice("b", FinishReason.LENGTH)), (logprobs,)),
        Payload(embeddings=(struct.pack("<2f", 0.5, -1.0),)),
        Payload(scores=(ContinuationScore((-1.0, -2.0), is_greedy=True),)),
    ]
    results = [
        replace(result(request.id, output="a"), payload=payload)
        for request, payload in zip(claimed.requests, payloads, strict=True)
    ]
    with store.transaction() as session:
        shards.save(session, [Progress(claimed, results, running_tokens=0, is_last=True)], lease=LEASE)
    found = client.get(f"/v1/batch/{batch_id}/results").json()["data"]
    token = client.app.state.services.checkpoint.token_text  # type: ignore[attr-defined]
    told = {"token": token(65), "token_id": 65, "logprob": -0.5}
    told["top"] = [
        {"token": token(65), "token_id": 65, "logprob": -0.5, "top": None},
        {"token": token(66), "token_id": 66, "logprob": -1.0, "top": None},
    ]
    assert found[0]["choices"] == [
        {"text": "a", "message": None, "finish_reason": "stop", "logprobs": [told]},
        {"text": "b", "message": None, "finish_reason": "length", "logprobs": None},
    ]
    assert found[0]["prompt_logprobs"] == [told]
    assert found[1]["embedding"] == [0.5, -1.0]
    assert found[2]["scores"] == [{"logprob": -3.0, "token_logprobs": [-1.0, -2.0], "is_greedy": True}]
    assert client.get(f"/v1/batch/{batch_id}").json()["outputs"] == [["a", "b"], "a", "a"]
