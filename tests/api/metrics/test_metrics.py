import time

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text

from tests.fixtures.access import allow_semantic_cache
from tests.fixtures.batches import held, submit
from worker.contract.engine_state import ENGINE_STATE, EngineState
from worker.contract.messages import GPU_QUEUE
from worker.contract.meters import COUNTERS
from worker.contract.processes import BUILD, CORES, build
from worker.contract.usage import COUNTERS as USAGE_COUNTERS
from worker.store.counts import meters, usage
from worker.store.database.session import Store
from worker.store.watching import workers

INFO = {
    "name": "demo",
    "model_fingerprint": "f" * 32,
    CORES: 2,
    BUILD: build(torch="2.0.0"),
    ENGINE_STATE: {
        "num_blocks": 100,
        "num_used_blocks": 25,
        "num_cached_blocks": 60,
        "num_running": 3,
        "num_waiting": 4,
        "prefix_queried_tokens": 40,
        "prefix_cached_tokens": 10,
        "prefix_evictions": 7,
        "max_num_sequences": 48,
        "max_tokens_per_step": 384,
    },
}
READINGS = {
    "cache_lookups": 8,
    "decode_tokens": 60,
    "computed_tokens": 90,
    "padding_tokens": 10,
    "prefix_queried_tokens": 40,
    "prefix_cached_tokens": 30,
    "lookup_guessed_tokens": 20,
    "lookup_right_tokens": 12,
    "scheduled_sequences": 30,
    "sequence_rows": 120,
    "kv_used_block_steps": 12,
    "kv_block_steps": 48,
    "prefill_seconds": 0.25,
    "decode_seconds": 0.5,
    "cpu_seconds": 1.5,
}
USED = {
    "requests_completed": 9,
    "requests_failed": 1,
    "cache_hits_exact": 1,
    "cache_hits_semantic": 1,
    "output_tokens": 70,
    "claimed/batch/normal/0.1": 3,
    "claimed/batch/high/0.1": 2,
    "claimed/batch/normal/0.25": 5,
    "claimed/batch/normal/sum": 1.0,
    "claimed/batch/high/sum": 0.2,
}


def measure(store: Store, worker: str = "a") -> None:
    with store.transaction() as session:
        meters.add(session, worker, READINGS)
        usage.add(session, "default", USED)
        workers.seen(session, name=worker, queue=GPU_QUEUE, slots=2, info=INFO)


def samples(client: TestClient) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return every series by its name and its labels, which come in the order of their names."""
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_prometheus_sees_all_workers_and_queues(client: TestClient, store: Store) -> None:
    measure(store, "a")
    measure(store, "b")
    submit(store, num_requests=6, shard_size=2)
    held(store, 1)
    found = samples(client)
    assert found["headrace_requests_completed_total", ()] == 18
    assert found["headrace_decode_seconds_total", ()] == 1.0
    assert found["headrace_workers", ("gpu",)] == 2
    assert found["headrace_batches", ("processing",)] == 1
    assert found["headrace_shards", ("ready",)] == 2
    assert found["headrace_shards", ("running",)] == 1
    assert found["headrace_requests_pending", ()] == 6
    assert found["headrace_request_latency_seconds_bucket", ("batch", "0.1", "normal")] == 6
    assert found["headrace_request_latency_seconds_bucket", ("batch", "+Inf", "normal")] == 16
    assert found["headrace_request_latency_seconds_sum", ("batch", "normal")] == 2.0
    assert found["headrace_request_latency_seconds_count", ("batch", "high")] == 4
    assert all((f"headrace_{name}_total", ()) in found for name in (*COUNTERS, *USAGE_COUNTERS))


def test_http_is_counted_by_route_not_by_path(client: TestClient) -> None:
    client.get("/v1/batch/batch_nope")
    client.get("/v1/batch/batch_neither")
    client.get("/nowhere")
    found = samples(client)
    assert found["headrace_http_requests_total", ("GET", "/v1/batch/{batch_id}", "404")] == 2
    assert found["headrace_http_requests_total", ("GET", "none", "404")] == 1
    assert found["headrace_http_request_seconds_count", ("GET", "/v1/batch/{batch_id}")] == 2


def test_the_summary_is_what_was_measured(client: TestClient, store: Store) -> None:
    while not 5 < time.time() % 60 < 55:  # a window of less than a second would be lost in the rounding
        time.sleep(0.5)
    measure(store)
    found = client.get("/v1/metrics", params={"minutes": 2}).json()
    seconds = found["window_seconds"]
    assert 0 < seconds <= 60
    assert (found["requests_total"], found["requests_failed"], found["output_tokens"]) == (10, 1, 70)
    # The window is rounded too.
    assert found["requests_per_second"] == pytest.approx(10 / seconds, rel=2e-3)
    assert found["tokens_per_second"] == pytest.approx(60 / seconds, abs=0.006)
    assert (found["avg_latency_ms"], found["p50_latency_ms"], found["p99_latency_ms"]) == (120, 100, 247)
    assert (found["batch_utilization"], found["padding_efficiency"]) == (0.25, 0.9)
    assert (found["cache_hit_rate"], found["prefix_cache_hit_rate"]) == (0.25, 0.75)
    assert found["speculation_hit_rate"] == 0.6
    assert found["workers"] == 1
    assert found["kv_utilization"] == 0.25
    assert found["device_utilization"] == pytest.approx(0.75 / seconds, abs=1e-4)
    assert found["cpu_utilization"] == pytest.approx(1.5 / seconds / 2, abs=1e-4)
    whole, normal, high = found["latency"]
    assert [(one["lane"], one["priority"]) for one in found["latency"]] == [
        ("batch", None),
        ("batch", "normal"),
        ("batch", "high"),
    ]
    assert whole["claimed"] == {
        "requests": 10,
        "mean_ms": 120.0,
        "p50_ms": found["p50_latency_ms"],
        "p95_ms": found["p95_latency_ms"],
        "p99_ms": found["p99_latency_ms"],
    }
    assert (normal["claimed"]["requests"], high["claimed"]["p50_ms"]) == (8, 75.0)
    assert whole["queue"]["requests"] == 0


def test_what_was_not_measured_is_null(client: TestClient) -> None:
    found = client.get("/v1/metrics").json()
    assert (found["requests_total"], found["requests_per_second"]) == (0, 0)
    for name in ("avg_latency_ms", "p99_latency_ms", "batch_utilization", "cache_hit_rate"):
        assert found[name] is None
    assert client.get("/v1/cache/stats").json()["hit_rate"] is None


def test_cache_stats_and_clearing(client: TestClient, store: Store) -> None:
    measure(store)
    with store.transaction() as session:
        session.execute(
            text(
                'INSERT INTO cached_responses (key, "group", payload, embedding, expires_at) VALUES'
                " ('\\x01', '\\x00', '{}', '{1,0}', now() + interval '1h'),"
                " ('\\x02', '\\x00', '{}', NULL, now() + interval '1h'),"
                " ('\\x03', '\\x00', '{}', NULL, now() - interval '1h')"
            )
        )
    found = client.get("/v1/cache/stats").json()
    assert (found["total_entries"], found["semantic_entries"]) == (2, 1)
    assert found["total_size_mb"] > 0
    assert (found["lookups"], found["hits"], found["hit_rate"]) == (8, 2, 0.25)
    assert found["prefix_cache"] == {
        "queried_tokens": 40,
        "cached_tokens": 30,
        "hit_rate": 0.75,
        "evictions": 0,
        "workers": [
            {
                "worker": "a",
                "model": "demo",
                "blocks": 100,
                "used_blocks": 25,
                "cached_blocks": 60,
                "occupancy": 0.25,
                "queried_tokens": 40,
                "cached_tokens": 10,
                "hit_rate": 0.25,
                "evictions": 7,
            }
        ],
    }
    assert found["semantic_available"] is True
    assert client.delete("/v1/cache").json() == {"entries_removed": 3, "workers": 1}
    assert client.get("/v1/cache/stats").json()["total_entries"] == 0


def test_a_semantic_cache_is_refused_where_postgres_has_no_pgvector(client: TestClient, store: Store) -> None:
    allow_semantic_cache(store)
    body = {"requests": [{"prompt": "a"}, {"prompt": "b", "cache": "semantic"}]}
    assert client.post("/v1/batch/async", json=body).status_code == 202
    with store.transaction() as session:
        session.execute(text("DROP EXTENSION vector"))
    try:
        assert client.get("/v1/cache/stats").json()["semantic_available"] is False
        answer = client.post("/v1/batch/async", json=body)
        assert answer.status_code == 422
        assert answer.json()["error"]["param"] == "requests[1].cache"
        assert "pgvector" in answer.json()["error"]["message"]
        assert client.post("/v1/batch/async", json={"prompts": ["a"], "cache": "exact"}).status_code == 202
    finally:
        with store.transaction() as session:
            session.execute(text("CREATE EXTENSION vector"))


def test_a_worker_of_an_earlier_version_says_nothing_of_limits() -> None:
    said = {name: value for name, value in INFO[ENGINE_STATE].items() if not name.startswith("max_")}
    state = EngineState.of_worker({ENGINE_STATE: said})
    assert state is not None
    assert (state.num_blocks, state.max_num_sequences, state.max_tokens_per_step) == (100, 0, 0)
