"""Collects Prometheus metrics of this process's HTTP, and of all workers from Postgres."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from worker.contract.messages import CALLBACKS_QUEUE, GPU_QUEUE
from worker.contract.meters import COUNTERS, LATENCY_BOUNDS, LATENCY_SUM, Readings, latency_counts
from worker.store.cache import response_cache
from worker.store.counts import meters
from worker.store.database.session import Store
from worker.store.watching import workers
from worker.store.watching.queue_depth import QueueDepth, queue_depth


class HttpMetrics:
    """Counts and times the requests that this API process answers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("method", "route")
        self.requests = Counter(
            "headrace_http_requests",
            "HTTP requests answered by this process",
            (*labels, "status"),
            registry=registry,
        )
        self.seconds = Histogram(
            "headrace_http_request_seconds", "Time to the first byte of the answer", labels, registry=registry
        )


class SystemCollector(Collector):
    """Reads Postgres at each scrape. Every API process shows the same numbers."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def describe(self) -> Iterator[Metric]:
        """Yield nothing: the registry would otherwise collect at the start, when Postgres may be away."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """Yield the counters of all workers since the first day, and the present gauges."""
        with self._store.transaction() as session:
            total = meters.measured(session, minutes=1).total
            depth = queue_depth(session)
            alive = {queue: workers.count(session, queue) for queue in (GPU_QUEUE, CALLBACKS_QUEUE)}
            entries = response_cache.size(session).num_entries
        for name, meaning in COUNTERS.items():
            yield CounterMetricFamily(f"headrace_{name}", meaning, value=total.get(name, 0.0))
        yield _latency(total)
        yield from _gauges(depth)
        family = GaugeMetricFamily("headrace_workers", "Workers seen lately", labels=["queue"])
        for queue, count in alive.items():
            family.add_metric([queue], count)
        yield family
        yield GaugeMetricFamily("headrace_cache_entries", "Answers in the response cache", value=entries)


def _latency(total: Readings) -> Metric:
    counts = latency_counts(total)
    buckets, so_far = [], 0.0
    for bound, count in zip([*map(str, LATENCY_BOUNDS), "+Inf"], counts, strict=True):
        so_far += count
        buckets.append((bound, so_far))
    return HistogramMetricFamily(
        "headrace_request_latency_seconds",
        "From the claim of a request's shard to its outcome",
        buckets=buckets,
        sum_value=total.get(LATENCY_SUM, 0.0),
    )


def _gauges(depth: QueueDepth) -> Iterator[Metric]:
    batches = GaugeMetricFamily("headrace_batches", "Live batches", labels=["status"])
    for status, count in depth.batches.items():
        batches.add_metric([status], count)
    yield batches
    shards = GaugeMetricFamily("headrace_shards", "Shards that wait or run", labels=["state"])
    shards.add_metric(["ready"], depth.shards_ready)
    shards.add_metric(["running"], depth.shards_running)
    yield shards
    yield GaugeMetricFamily(
        "headrace_requests_pending", "Requests of live batches without a result", value=depth.requests_pending
    )
    yield GaugeMetricFamily(
        "headrace_webhooks_pending", "Webhook events to be sent", value=depth.deliveries_pending
    )
