"""One truth, made by real saves and attempts; every reader of it shows the same numbers."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text

from api.main import create_app
from tests.api.dashboard.test_dashboard import Page, pick
from tests.api.metrics.test_metrics import INFO, measure, samples
from tests.fixtures.batches import LEASE, held, result, submit
from tests.fixtures.webhooks import deliverer, delivery_ids
from worker.contract.distributions import BOUNDS, Distribution
from worker.contract.messages import CALLBACKS_QUEUE
from worker.contract.processes import DISPATCHER, FILES
from worker.contract.states import Lane
from worker.contract.usage import COUNTERS
from worker.settings import Settings
from worker.store.database.session import Store
from worker.store.shards import shards
from worker.store.shards.shards import Progress
from worker.store.tenants import tenants
from worker.store.watching import workers
from worker.values.outcomes import Outcome
from worker.values.results import DeviceSeconds

# Each result takes half a device second and generates 7 tokens from 3: at these prices, 0.5 + 3 + 14.
PRICED = {
    "price_per_device_hour": 3600.0,
    "price_per_million_input_tokens": 1e6,
    "price_per_million_output_tokens": 2e6,
    "currency": "EUR",
}
EACH = 17.5
UNITS = ("seconds", "bytes", "ratio", "tokens")


@pytest.fixture
def client(store: Store, config: Settings) -> Iterator[TestClient]:  # noqa: ARG001 - empties the tables
    with TestClient(create_app(config.model_copy(update=PRICED))) as client:
        yield client


def run(client: TestClient, store: Store, tenant: str, seconds: int, **batch: Any) -> str:
    """Run a batch of two requests that one save ends, `seconds` after it was accepted and half of that after
    it was claimed."""
    priced: Store = client.app.state.services.everybody  # type: ignore[attr-defined]
    with store.transaction() as session:
        tenants.create(session, tenant)
    batch_id = submit(store.of_tenant(tenant), num_requests=2, **batch)
    with store.transaction() as session:
        shard_id = session.scalar(text("SELECT max(id) FROM shards"))
    claimed = held(store, shard_id)
    device = DeviceSeconds(prefill=0.1, decode=0.3, padding=0.1)
    with priced.transaction() as session:
        ages = {"id": batch_id, "accepted": seconds, "claimed": seconds / 2}
        for statement in (
            "UPDATE batches SET created_at = now() - make_interval(secs => :accepted) WHERE id = :id",
            "UPDATE shards SET claimed_at = now() - make_interval(secs => :claimed) WHERE batch_id = :id",
        ):
            session.execute(text(statement), ages)
        done = [replace(result(one.id), seconds=device) for one in claimed.requests]
        shards.save(session, [Progress(claimed, done, running_tokens=0, is_last=True)], lease=LEASE)
    return batch_id


def work(client: TestClient, store: Store) -> str:
    """Do some work for two tenants; return the id of one batch."""
    run(client, store, "acme", 100, lane=Lane.INTERACTIVE)
    run(client, store, "globex", 20, priority=3)
    return run(client, store, "default", 4)


def buckets(client: TestClient, metric: str, lane: str) -> Distribution:
    """Return the distribution in the scraped histograms of a lane."""
    found = samples(client)
    several = []
    for priority in ("low", "normal", "high"):
        so_far, counts = 0.0, []
        for bound in [*map(str, BOUNDS), "+Inf"]:
            here = found.get((f"{metric}_bucket", (lane, bound, priority)), 0.0)
            counts.append(here - so_far)
            so_far = here
        several.append(Distribution(tuple(counts), found.get((f"{metric}_sum", (lane, priority)), 0.0)))
    return Distribution.merged(several)


def test_metrics_the_api_and_the_dashboard_show_the_same_numbers(client: TestClient, store: Store) -> None:
    batch_id = work(client, store)
    measure(store)
    with store.transaction() as session:  # what `measure` adds itself is not the subject
        session.execute(
            text("DELETE FROM usage WHERE NOT readings ? 'cost_billionths' AND readings ? 'cache_hits_exact'")
        )
    scraped = samples(client)
    summary = client.get("/v1/metrics").json()
    by_tenant = client.get("/v1/usage/tenants").json()
    page = {"metrics": summary, "overview": client.get("/v1/overview").json()}

    assert scraped["headrace_cost_total", ("EUR",)] == 6 * EACH
    assert summary["total"] == by_tenant["total"] == summary["recent"]
    assert summary["total"]["cost"] == {"amount": 6 * EACH, "currency": "EUR"}
    assert pick(page, "metrics.total.cost.amount") == 6 * EACH
    assert {one["tenant"]: one["cost"]["amount"] for one in by_tenant["data"]} == {
        "acme": 2 * EACH,
        "default": 2 * EACH,
        "globex": 2 * EACH,
    }
    for tenant in ("acme", "default", "globex"):
        assert scraped["headrace_tenant_cost_total", ("EUR", tenant)] == 2 * EACH
        assert scraped["headrace_tenant_requests_total", ("completed", tenant)] == 2
        assert scraped["headrace_tenant_tokens_total", ("output", tenant)] == 14
        assert scraped["headrace_tenant_device_seconds_total", (tenant,)] == 1.0
    batch = client.get(f"/v1/batch/{batch_id}").json()
    assert batch["usage"]["cost"] == {"amount": 2 * EACH, "currency": "EUR"}
    own, stats = client.get("/v1/usage").json(), client.get("/v1/batch/stats").json()
    assert own["total"] == stats["usage"]
    assert own["total"]["cost"] == batch["usage"]["cost"]
    assert own["total"]["device_seconds"] == batch["usage"]["device_seconds"]
    assert own["total"]["output_tokens"] == batch["usage"]["output_tokens"] == 14
    assert own["total"]["tokens_per_device_second"] == 14.0
    (day,) = own["data"]
    assert {name: value for name, value in day.items() if name != "day"} == own["total"]

    assert own["latency"] == stats["latency"]
    assert summary["latency"] == page["metrics"]["latency"]
    for line in summary["latency"]:
        if line["priority"] is not None:
            continue
        for part, metric in (
            ("total", "headrace_request_seconds"),
            ("claimed", "headrace_request_latency_seconds"),
        ):
            found = buckets(client, metric, line["lane"])
            for name, share in (("p50_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99)):
                expected = found.quantile(share)
                assert expected is not None
                assert line[part][name] == round(1000 * expected, 3), (line["lane"], part, name)
            assert line[part]["requests"] == found.count
    interactive = next(one for one in summary["latency"] if one["lane"] == "interactive")
    assert 60_000 < interactive["total"]["p50_ms"] <= 120_000
    assert 30_000 < interactive["claimed"]["p50_ms"] <= 60_000
    high = next(one for one in summary["latency"] if one["priority"] == "high")
    assert (high["lane"], high["total"]["requests"]) == ("batch", 2)

    (worker,) = client.get("/v1/cache/stats").json()["prefix_cache"]["workers"]
    (shown,) = page["overview"]["workers"]
    assert worker["occupancy"] == shown["kv_occupancy"] == 0.25
    assert (
        scraped["headrace_worker_kv_blocks_used", ("a",)] / scraped["headrace_worker_kv_blocks", ("a",)]
        == 0.25
    )
    assert worker["hit_rate"] == shown["prefix_hit_rate"] == 0.25
    assert scraped["headrace_worker_prefix_evictions_total", ("a",)] == worker["evictions"] == 7
    wanted = {name for names in Page().rows.values() for name in names} | Page().fields
    assert {"metrics.total.cost.amount", "kv_occupancy", "total.p95_ms", "metrics.kv_utilization"} <= wanted


def test_every_series_tells_the_truth(client: TestClient, store: Store) -> None:
    work(client, store)
    waiting = submit(store, num_requests=2)
    failing = submit(store, num_requests=2, callback_url="http://127.0.0.1:9/hook")
    with store.transaction() as session:
        session.execute(
            text("UPDATE batches SET created_at = now() - interval '90 s' WHERE id = :id"), {"id": waiting}
        )
        for process in (CALLBACKS_QUEUE, DISPATCHER, FILES):
            workers.seen(session, name=f"{process}@here", queue=process, slots=1, info={})
        workers.seen(session, name="gpu@here", queue="gpu", slots=1, info=INFO)
        shard_id = session.scalar(text("SELECT max(id) FROM shards"))
    failed = held(store, shard_id)
    with store.transaction() as session:
        done = [result(one.id, outcome=Outcome.FAILED) for one in failed.requests]
        shards.save(session, [Progress(failed, done, running_tokens=0, is_last=True)], lease=LEASE)
    assert failing
    (delivery_id,) = delivery_ids(store)
    deliverer(store).deliver(delivery_id)

    found = samples(client)
    assert found["headrace_requests_completed_total", ()] == 6
    assert found["headrace_requests_failed_total", ()] == 2
    assert found["headrace_usage_device_seconds_total", ("decode",)] == pytest.approx(6 * 0.3)
    assert found["headrace_batches_ended_total", ("batch", "completed")] == 3
    assert found["headrace_batches_ended_total", ("interactive", "completed")] == 1
    assert found["headrace_webhook_attempts_total", ("retried",)] == 1
    assert found["headrace_webhook_attempt_seconds_count", ("retried",)] == 1
    assert 90 <= found["headrace_queue_age_seconds", ("batch", "any")] < 150
    assert found["headrace_queue_age_seconds", ("batch", "demo@ffffffff")] == 0
    assert found["headrace_queue_age_seconds", ("interactive", "demo@ffffffff")] == 0
    assert found["headrace_workers", ("gpu",)] == 1
    assert found["headrace_workers", ("callbacks",)] == 1
    assert (found["headrace_processes", (DISPATCHER,)], found["headrace_processes", (FILES,)]) == (1, 1)
    assert found["headrace_worker_kv_blocks", ("gpu@here",)] == 100
    assert found["headrace_worker_kv_blocks_cached", ("gpu@here",)] == 60
    assert found["headrace_worker_sequences_running", ("gpu@here",)] == 3
    assert found["headrace_worker_step_sequences_limit", ("gpu@here",)] == 48
    assert found["headrace_worker_step_tokens_limit", ("gpu@here",)] == 384
    builds = [labels for name, labels in found if name == "headrace_build_info"]
    assert [
        (model, process, revision, torch) for model, process, _, revision, torch, _ in sorted(builds)
    ] == [
        ("", "web", "", ""),
        ("demo", "gpu", "f" * 32, "2.0.0"),
    ]


def test_tenants_beyond_the_limit_are_summed_and_none_ever_loses_its_series(
    store: Store, config: Settings
) -> None:
    limited = config.model_copy(update=PRICED | {"metrics_tenants": 2})
    with TestClient(create_app(limited)) as client:
        run(client, store, "zeta", 1)
        run(client, store, "acme", 1)
        run(client, store, "beta", 1)
        found = samples(client)
    shown = {
        labels[1]: value for (name, labels), value in found.items() if name == "headrace_tenant_cost_total"
    }
    assert shown == {"zeta": 2 * EACH, "acme": 2 * EACH, "other": 2 * EACH}, "the oldest, whatever they use"


def test_names_units_and_types_are_as_prometheus_wants_them(client: TestClient, store: Store) -> None:
    work(client, store)
    measure(store)
    answer = client.get("/metrics")
    families = list(text_string_to_metric_families(answer.text))
    assert len({one.name for one in families}) == len(families)
    for family in families:
        _lint(family)
    assert {f"headrace_{name}" for name in COUNTERS} <= {one.name for one in families}


def _lint(family: Metric) -> None:
    """Check a family as `promtool check metrics` would."""
    assert family.documentation, family.name
    assert re.fullmatch(r"headrace_[a-z][a-z0-9_]*", family.name), family.name
    assert not re.search(r"(_ms|_milliseconds|_mb|_percent|_minutes|_count|_sum|_bucket)$", family.name)
    assert not family.name.startswith("headrace_headrace")
    seen = {(one.name, tuple(sorted(one.labels.items()))) for one in family.samples}
    assert len(seen) == len(family.samples), f"{family.name} has a series twice"
    for sample in family.samples:
        assert all(re.fullmatch(r"[a-z_]+", label) for label in sample.labels), family.name
        if family.type == "counter":
            assert sample.name == f"{family.name}_total"
            assert sample.value >= 0
        else:
            assert not sample.name.endswith("_total"), sample.name
    if family.type == "histogram":
        assert family.name.endswith("_seconds"), "histograms have a base unit"
        _check_buckets(family)


def _check_buckets(family: Metric) -> None:
    by_labels: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for sample in family.samples:
        labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        one = by_labels.setdefault(labels, {"buckets": []})
        if sample.name.endswith("_bucket"):
            one["buckets"].append((float(sample.labels["le"]), sample.value))
        else:
            one[sample.name.removeprefix(family.name)] = sample.value
    for one in by_labels.values():
        bounds, counts = zip(*one["buckets"], strict=True)
        assert list(bounds) == sorted(bounds)
        assert list(counts) == sorted(counts)
        assert bounds[-1] == float("inf")
        assert counts[-1] == one["_count"]
        assert "_sum" in one
