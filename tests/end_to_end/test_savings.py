"""What is saved, and what is measured of it, over HTTP with nothing replaced."""

from tests.fixtures.deployment import Deployment, eventually

GREEDY = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}


def test_identical_requests_and_known_answers_are_not_run_again(running: Deployment) -> None:
    prompts = [f"a prompt that comes often {i % 5}" for i in range(60)]
    first = running.wait_for(running.submit(prompts=prompts, cache="exact", **GREEDY))
    assert (first["counts"]["completed"], first["deduplicated"], first["cached"]) == (60, 55, 0)
    assert first["usage"]["device_seconds"]["decode"] > 0
    assert first["outputs"] == first["outputs"][:5] * 12
    again_id = running.submit(prompts=prompts[::-1], cache="exact", **GREEDY)
    again = running.wait_for(again_id)
    assert (again["counts"]["completed"], again["deduplicated"], again["cached"]) == (60, 0, 60)
    assert again["outputs"] == first["outputs"][::-1]
    assert again["usage"]["device_seconds"]["total"] == 0
    assert {result["source"] for result in running.results(again_id)} == {"exact_cache"}
    fresh = running.wait_for(running.submit(prompts=prompts[:5], **GREEDY))
    assert (fresh["cached"], fresh["outputs"]) == (0, first["outputs"][:5])

    def measured() -> bool:
        stats = running.client.get("/v1/cache/stats").json()
        return bool(stats["exact_hits"] >= 60 and stats["lookups"] >= 120)

    eventually(measured, what="the workers' own count of it")
    summary = running.client.get("/v1/metrics").json()
    assert summary["cache_hit_rate"] > 0
    assert summary["device_seconds"]["decode"] > 0
    assert summary["batch_utilization"] > 0
    assert summary["p99_latency_ms"] > 0


def test_a_prompt_that_is_nearly_the_same_gets_the_answer_it_asked_for(running: Deployment) -> None:
    known = "the quick brown fox jumps over the lazy dog, and over the cat " * 3
    asked = {"cache": "semantic", "cache_similarity": 0.6, **GREEDY}
    refused = running.client.post("/v1/batch/async", json={"prompts": [known], **asked})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "semantic_cache_not_allowed")
    running.sql("UPDATE tenants SET may_use_semantic_cache = true WHERE id = 'default' RETURNING id")
    first = running.wait_for(running.submit(prompts=[known], **asked))
    second_id = running.submit(prompts=[known + "!"], **asked)
    assert running.wait_for(second_id)["outputs"] == first["outputs"]
    result = running.results(second_id)[0]
    assert result["source"] == "semantic_cache"
    assert 0.6 <= result["similarity"] < 1


def test_an_estimate_follows_what_was_measured(running: Deployment) -> None:
    body = {"prompts": ["a prompt for the estimate " * 4] * 3 + ["another"], **GREEDY}
    running.wait_for(running.submit(**body))
    eventually(
        lambda: running.client.post("/v1/batch/estimate", json=body).json()["finish"], what="a measured rate"
    )
    found = running.client.post("/v1/batch/estimate", json=body).json()
    assert (found["requests"], found["duplicates"], found["workers"]) == (4, 2, 1)
    assert found["expected_output_tokens"]["expected"] == 32
    assert 0 < found["cost_units"]["low"] <= found["cost_units"]["expected"] <= found["cost_units"]["high"]
