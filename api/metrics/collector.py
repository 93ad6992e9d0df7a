"""Collects Prometheus metrics of this process's HTTP, and of everything else from Postgres."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from api.figures import total_of
from api.metrics import families
from worker.settings import Settings
from worker.store.cache import response_cache
from worker.store.counts import meters, usage
from worker.store.database.session import Store
from worker.store.watching import scaling, workers
from worker.store.watching.queue_depth import queue_ages, queue_depth


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

    def __init__(self, store: Store, config: Settings) -> None:
        self._store = store
        self._config = config

    def describe(self) -> Iterator[Metric]:
        """Yield nothing: the registry would otherwise collect at the start, when Postgres may be away."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """Yield the counters since the first day, and the present gauges."""
        currency = self._config.currency
        with self._store.transaction() as session:
            engines = meters.measured(session, minutes=1).total
            by_tenant = usage.by_tenant(session)
            named = usage.named_tenants(session, limit=self._config.metrics_tenants)
            depth = queue_depth(session)
            ages = queue_ages(session)
            alive = workers.live(session)
            wanted = scaling.published(session)
            entries = response_cache.size(session).num_entries
        yield from families.of_engines(engines)
        yield from families.of_usage(total_of(by_tenant.values()), currency)
        yield from families.of_tenants(by_tenant, named, currency)
        yield from families.of_queues(depth, ages)
        yield from families.of_processes(alive)
        yield from families.of_wanted(wanted)
        yield GaugeMetricFamily("headrace_cache_entries", "Answers in the response cache", value=entries)
