"""Turns readings, queues and workers into Prometheus's families of metrics."""

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from api.figures import total_of
from worker.contract import models
from worker.contract.distributions import BOUNDS, distributions, labelled
from worker.contract.engine_state import EngineState
from worker.contract.messages import CALLBACKS_QUEUE, GPU_QUEUE
from worker.contract.meters import COUNTERS, Readings
from worker.contract.prices import to_amount
from worker.contract.processes import BUILD, DISPATCHER, FILES, SWITCHING, build
from worker.contract.usage import (
    BATCHES_ENDED,
    COST,
    LATENCIES,
    SECONDS,
    WEBHOOK_ATTEMPTS,
    WEBHOOK_SECONDS,
)
from worker.contract.usage import COUNTERS as USAGE_COUNTERS
from worker.store.watching.queue_depth import QueueAge, QueueDepth
from worker.store.watching.scaling import WantedWorkers
from worker.store.watching.workers import LiveProcess

# The tenants that have no series of their own are summed under this name.
OTHERS = "other"
WEB = "web"


def of_engines(readings: Readings) -> Iterator[Metric]:
    """Yield the counters of all workers' engines."""
    for name, meaning in COUNTERS.items():
        yield CounterMetricFamily(f"headrace_{name}", meaning, value=readings.get(name, 0.0))


def of_usage(readings: Readings, currency: str) -> Iterator[Metric]:
    """Yield what all work came to: requests, tokens, device seconds, cost, latencies, ends, webhooks."""
    for name, meaning in USAGE_COUNTERS.items():
        yield CounterMetricFamily(f"headrace_{name}", meaning, value=readings.get(name, 0.0))
    seconds = CounterMetricFamily(
        "headrace_usage_device_seconds", "Device seconds of requests that have a result", labels=["kind"]
    )
    for name in SECONDS:
        seconds.add_metric([name.removesuffix("_seconds")], readings.get(name, 0.0))
    yield seconds
    cost = CounterMetricFamily(
        "headrace_cost", "Cost of requests that have a result, at the prices of then", labels=["currency"]
    )
    cost.add_metric([currency], to_amount(readings.get(COST, 0.0)))
    yield cost
    for latency, shown in LATENCIES.items():
        yield _histogram(shown.metric, shown.description, readings, latency, ["lane", "priority"])
    yield _counter("headrace_batches_ended", "Batches ended", readings, BATCHES_ENDED, ["lane", "status"])
    yield _counter(
        "headrace_webhook_attempts",
        "Attempts to deliver a webhook: delivered, to be retried, or failed for good",
        readings,
        WEBHOOK_ATTEMPTS,
        ["outcome"],
    )
    yield _histogram(
        "headrace_webhook_attempt_seconds", "Time of an attempt", readings, WEBHOOK_SECONDS, ["outcome"]
    )


def of_tenants(by_tenant: Mapping[str, Readings], named: Sequence[str], currency: str) -> Iterator[Metric]:
    """Yield usage by tenant; tenants that are not named are summed."""
    shown: dict[str, Readings] = {}
    for tenant, readings in by_tenant.items():
        label = tenant if tenant in named else OTHERS
        shown[label] = total_of([shown.get(label, {}), readings])
    requests = CounterMetricFamily(
        "headrace_tenant_requests", "Requests that have a result", labels=["tenant", "outcome"]
    )
    tokens = CounterMetricFamily(
        "headrace_tenant_tokens", "Tokens of requests that have a result", labels=["tenant", "kind"]
    )
    seconds = CounterMetricFamily(
        "headrace_tenant_device_seconds", "Device seconds of requests that have a result", labels=["tenant"]
    )
    cost = CounterMetricFamily(
        "headrace_tenant_cost", "Cost of requests that have a result", labels=["tenant", "currency"]
    )
    for tenant, readings in shown.items():
        for outcome in ("completed", "failed", "cancelled"):
            requests.add_metric([tenant, outcome], readings.get(f"requests_{outcome}", 0.0))
        for kind in ("input", "cached", "output"):
            tokens.add_metric([tenant, kind], readings.get(f"{kind}_tokens", 0.0))
        seconds.add_metric([tenant], sum(readings.get(name, 0.0) for name in SECONDS))
        cost.add_metric([tenant, currency], to_amount(readings.get(COST, 0.0)))
    yield from (requests, tokens, seconds, cost)


def of_queues(depth: QueueDepth, ages: Sequence[QueueAge]) -> Iterator[Metric]:
    """Yield what waits and runs now, and for how long the oldest has waited."""
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
    oldest = GaugeMetricFamily(
        "headrace_queue_age_seconds",
        "Time since the acceptance of the oldest batch with a waiting shard; 0: none waits",
        labels=["lane", "model"],
    )
    for age in ages:
        oldest.add_metric([age.lane, age.model], age.seconds)
    yield oldest


def of_processes(alive: Sequence[LiveProcess]) -> Iterator[Metric]:
    """Yield how many processes live, what they are built of, and the KV cache of each gpu worker."""
    workers = GaugeMetricFamily("headrace_workers", "Workers seen lately", labels=["queue"])
    for queue in (GPU_QUEUE, CALLBACKS_QUEUE):
        workers.add_metric([queue], sum(one.queue == queue for one in alive))
    others = GaugeMetricFamily("headrace_processes", "Other processes seen lately", labels=["process"])
    for process in (DISPATCHER, FILES, SWITCHING):
        others.add_metric([process], sum(one.queue == process for one in alive))
    yield from (workers, others)
    yield _builds(alive)
    yield from _engine_states(
        [(one.name, state) for one in alive if (state := EngineState.of_worker(one.info))]
    )


def of_wanted(decisions: Sequence[WantedWorkers]) -> Iterator[Metric]:
    """Yield what the dispatcher decided on each model, and by what."""
    wanted = GaugeMetricFamily(
        "headrace_wanted_workers", "Gpu workers that the deadlines need", labels=["model", "capacity"]
    )
    tokens = GaugeMetricFamily(
        "headrace_backlog_tokens",
        "Tokens of prompts and expected outputs that are still to be computed",
        labels=["model"],
    )
    seconds = GaugeMetricFamily(
        "headrace_backlog_worker_seconds",
        "Time of one worker for the backlog, at the upper end of the estimate",
        labels=["model"],
    )
    for one in decisions:
        model = models.label(one.model_name, one.model_fingerprint)
        wanted.add_metric([model, "on-demand"], one.on_demand)
        wanted.add_metric([model, "spot"], one.spot)
        tokens.add_metric([model], one.num_tokens)
        seconds.add_metric([model], one.work_seconds)
    yield from (wanted, tokens, seconds)


def _builds(alive: Sequence[LiveProcess]) -> Metric:
    labels = ("process", "version", "python", "torch", "model", "revision")
    family = InfoMetricFamily(
        "headrace_build", "What the live processes are built of, and serve", labels=labels
    )
    said = [build() | {"process": WEB}]
    said += [
        one.info[BUILD]
        | {"process": one.queue}
        | {"model": one.info.get("name", ""), "revision": one.info.get("model_fingerprint", "")}
        for one in alive
        if BUILD in one.info
    ]
    for values in sorted({tuple(str(one.get(label, "")) for label in labels) for one in said}):
        family.add_metric(values, {})
    return family


def _engine_states(states: Sequence[tuple[str, EngineState]]) -> Iterator[Metric]:
    gauges = {
        "kv_blocks": ("Blocks of the worker's KV cache", "num_blocks"),
        "kv_blocks_used": ("Blocks of the KV cache that sequences hold", "num_used_blocks"),
        "kv_blocks_cached": ("Blocks whose content the prefix cache can find", "num_cached_blocks"),
        "sequences_running": ("Sequences that hold blocks", "num_running"),
        "sequences_waiting": ("Sequences in the engine that hold no blocks", "num_waiting"),
        "step_sequences_limit": ("Sequences that a step may have now", "max_num_sequences"),
        "step_tokens_limit": ("Tokens that a step may have now", "max_tokens_per_step"),
    }
    for name, (meaning, field) in gauges.items():
        gauge = GaugeMetricFamily(f"headrace_worker_{name}", meaning, labels=["worker"])
        for worker, state in states:
            gauge.add_metric([worker], getattr(state, field))
        yield gauge
    counters = {
        "prefix_queried_tokens": "Prompt tokens that the worker looked up in its prefix cache",
        "prefix_cached_tokens": "Prompt tokens that the worker found in its prefix cache",
        "prefix_evictions": "Blocks of the worker's prefix cache that were needed for something else",
    }
    for name, meaning in counters.items():
        counter = CounterMetricFamily(f"headrace_worker_{name}", meaning, labels=["worker"])
        for worker, state in states:
            counter.add_metric([worker], getattr(state, name))
        yield counter


def _counter(metric: str, meaning: str, readings: Readings, name: str, labels: Sequence[str]) -> Metric:
    family = CounterMetricFamily(metric, meaning, labels=labels)
    for values, count in labelled(readings, name).items():
        family.add_metric(values, count)
    return family


def _histogram(metric: str, meaning: str, readings: Readings, name: str, labels: Sequence[str]) -> Metric:
    family = HistogramMetricFamily(metric, meaning, labels=labels)
    for values, found in distributions(readings, name).items():
        buckets, so_far = [], 0.0
        for bound, count in zip([*map(str, BOUNDS), "+Inf"], found.counts, strict=True):
            so_far += count
            buckets.append((bound, so_far))
        family.add_metric(values, buckets=buckets, sum_value=found.total_seconds)
    return family
