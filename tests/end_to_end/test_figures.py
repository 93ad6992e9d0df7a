"""What a run came to, over HTTP with nothing replaced: percentiles, cost, KV cache, and who was there."""

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.fixtures.deployment import Deployment, eventually
from tests.fixtures.receiver import receiver

GREEDY = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
LONG = "a beginning that many prompts have in common, so that the second finds it computed: " * 2


def scrape(running: Deployment) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(running.client.get("/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def value(found: dict[str, list[tuple[dict[str, str], float]]], name: str, **labels: str) -> float:
    """Return the sum of the series with these labels; 0 if there is none yet."""
    return sum(number for given, number in found.get(name, []) if labels.items() <= given.items())


def cached_tokens(running: Deployment, prompt: str) -> int:
    done = running.wait_for(running.submit(prompts=[prompt], **GREEDY))
    return int(done["usage"]["input_tokens_details"]["cached_tokens"])


def test_one_run_has_the_same_figures_everywhere(running: Deployment) -> None:
    before = scrape(running)
    requests: list[dict[str, Any]] = [{"prompt": f"text {i}"} for i in range(6)]
    requests += [{"prompt": "embed me", "kind": "embedding"}]
    requests += [{"prompt": "score", "kind": "scoring", "continuations": [" this", " that"]}]
    with receiver() as hook:
        batch_id = running.submit(requests=requests, callback_url=hook.url, **GREEDY)
        batch = running.wait_for(batch_id)
        hook.wait_for(1)
        eventually(
            lambda: (
                value(scrape(running), "headrace_webhook_attempts_total", outcome="delivered")
                > value(before, "headrace_webhook_attempts_total", outcome="delivered")
            ),
            what="the count of the webhook",
        )
    after = scrape(running)

    def grown(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    results = running.results(batch_id)
    seconds = [one["usage"]["device_seconds"]["total"] for one in results]
    assert all(one > 0 for one in seconds), "embeddings and scores take device time too"
    usage = batch["usage"]
    assert usage["device_seconds"]["total"] > 0
    assert grown("headrace_cost_total") > 0
    assert round(grown("headrace_cost_total"), 9) == usage["cost"]["amount"]
    assert round(grown("headrace_tenant_cost_total", tenant="default"), 9) == usage["cost"]["amount"]
    price = usage["device_seconds"]["total"] + usage["output_tokens"]  # as tests/end_to_end/conftest.py says
    assert abs(usage["cost"]["amount"] - price) < 1e-4
    assert grown("headrace_output_tokens_total") == usage["output_tokens"] == 48
    assert grown("headrace_request_seconds_count", lane="batch", priority="normal") == 8
    assert grown("headrace_request_latency_seconds_count", lane="batch") == 8
    assert grown("headrace_request_queue_seconds_count", lane="batch") == 8
    assert grown("headrace_time_to_first_token_seconds_count", lane="batch") == 6, "readings have no tokens"
    queue = sum(one["queue_ms"] for one in results) / 1000
    assert abs(grown("headrace_request_queue_seconds_sum", lane="batch") - queue) < 0.01
    assert grown("headrace_batches_ended_total", lane="batch", status="completed") == 1
    own = running.client.get("/v1/usage").json()
    assert own["total"]["cost"]["amount"] == round(value(after, "headrace_tenant_cost_total"), 9)
    stats = running.client.get("/v1/batch/stats").json()
    assert stats["usage"] == own["total"]
    assert running.client.get("/v1/metrics").json()["total"] == own["total"]


def test_every_process_is_counted_and_described(running: Deployment) -> None:
    def seen() -> bool:
        found = scrape(running)
        return all(
            (
                value(found, "headrace_workers", queue="gpu") == 1,
                value(found, "headrace_workers", queue="callbacks") == 1,
                value(found, "headrace_processes", process="dispatcher") == 1,
            )
        )

    eventually(seen, what="a heartbeat of every process")
    builds = {labels["process"]: labels for labels, _ in scrape(running)["headrace_build_info"]}
    assert builds.keys() == {"web", "gpu", "callbacks", "dispatcher"}
    assert builds["gpu"]["torch"]
    (model,) = running.client.get("/v1/models").json()["data"]
    assert builds["gpu"]["revision"]
    assert model["id"].startswith(builds["gpu"]["model"])


def test_clearing_the_prefix_caches_reaches_the_worker(running: Deployment) -> None:
    cached_tokens(running, LONG + "one")
    assert cached_tokens(running, LONG + "two") > 0

    def cached_blocks() -> int:
        (worker,) = running.client.get("/v1/cache/stats").json()["prefix_cache"]["workers"]
        assert worker["blocks"] > 0
        return int(worker["cached_blocks"])

    eventually(cached_blocks, what="a heartbeat with the state of the prefix cache")
    for _ in range(2):  # the same again does no harm
        cleared = running.client.delete("/v1/cache", params={"kind": "prefix"})
        assert cleared.json() == {"entries_removed": None, "workers": 1}
    eventually(
        lambda: not running.sql("SELECT 1 FROM workers WHERE must_clear_cache"), what="the worker's answer"
    )
    assert cached_tokens(running, LONG + "three") == 0
    (act, *_) = running.client.get("/v1/audit").json()["data"]
    assert (act["act"], act["target"], act["details"]["workers"]) == ("cache.clear", "prefix", 1)
