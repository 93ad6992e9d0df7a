"""Computes totals, rates and shares from the Readings of meters."""

from collections.abc import Sequence

from api.figures import to_latencies, to_percentiles, to_usage
from api.metrics.schemas import CacheStats, PrefixCacheStats, Summary, WorkerCacheStats
from worker.contract.distributions import Distribution, distributions
from worker.contract.engine_state import EngineState
from worker.contract.meters import Readings
from worker.contract.processes import CORES
from worker.contract.usage import SECONDS, Latency
from worker.store.cache.response_cache import CacheSize
from worker.store.counts.measured import Measured
from worker.store.watching.queue_depth import QueueDepth
from worker.store.watching.workers import LiveProcess

PROPOSERS = ("lookup", "grammar", "draft", "medusa")
GUESSED, RIGHT = (tuple(f"{one}_{what}_tokens" for one in PROPOSERS) for what in ("guessed", "right"))
HITS = ("cache_hits_exact", "cache_hits_semantic")


def to_summary(
    engines: Measured, usage: Measured, depth: QueueDepth, workers: Sequence[LiveProcess], *, currency: str
) -> Summary:
    """Return totals, rates and shares, of what engines did and of what requests came to."""
    total, done, recent = usage.total, usage.recent, engines.recent
    seconds = max(engines.recent_seconds, usage.recent_seconds)
    finished = ("requests_completed", "requests_failed")
    claimed = to_percentiles(Distribution.merged(distributions(done, Latency.CLAIMED).values()))
    cores = sum(one.info.get(CORES, 0) for one in workers)
    return Summary(
        requests_total=_count(total, *finished),
        requests_failed=_count(total, "requests_failed"),
        requests_deduplicated=_count(total, "requests_deduplicated"),
        input_tokens=_count(total, "input_tokens"),
        output_tokens=_count(total, "output_tokens"),
        window_seconds=round(seconds, 3),
        requests_per_second=round(_count(done, *finished) / seconds, 4) if seconds else 0.0,
        tokens_per_second=round(_count(recent, "decode_tokens") / seconds, 2) if seconds else 0.0,
        avg_latency_ms=claimed.mean_ms,
        p50_latency_ms=claimed.p50_ms,
        p95_latency_ms=claimed.p95_ms,
        p99_latency_ms=claimed.p99_ms,
        latency=to_latencies(done),
        batch_utilization=share(recent, ("scheduled_sequences",), ("sequence_rows",)),
        padding_efficiency=share(recent, ("computed_tokens",), ("computed_tokens", "padding_tokens")),
        cache_hit_rate=share({**recent, **done}, HITS, ("cache_lookups",)),
        prefix_cache_hit_rate=share(recent, ("prefix_cached_tokens",), ("prefix_queried_tokens",)),
        speculation_hit_rate=share(recent, RIGHT, GUESSED),
        device_seconds={
            kind: round(recent.get(f"{kind}_seconds", 0.0), 3) for kind in ("prefill", "decode", "padding")
        },
        device_utilization=busy_share(recent, SECONDS, seconds * len(workers)),
        cpu_utilization=busy_share(recent, ("cpu_seconds",), seconds * cores),
        kv_utilization=share(recent, ("kv_used_block_steps",), ("kv_block_steps",)),
        recent=to_usage(done, currency),
        total=to_usage(total, currency),
        workers=len(workers),
        batches=depth.batches,
        requests_pending=depth.requests_pending,
        shards_ready=depth.shards_ready,
        shards_running=depth.shards_running,
        webhooks_pending=depth.deliveries_pending,
    )


def to_cache_stats(
    engines: Readings,
    usage: Readings,
    size: CacheSize,
    workers: Sequence[LiveProcess],
    *,
    ttl_seconds: float,
    has_vectors: bool,
) -> CacheStats:
    """Return the size of the response cache, the hits of both caches, and the KV cache of each worker."""
    total = {**engines, **usage}
    return CacheStats(
        total_entries=size.num_entries,
        semantic_entries=size.num_semantic,
        total_size_mb=round(size.num_bytes / 2**20, 3),
        lookups=_count(total, "cache_lookups"),
        hits=_count(total, *HITS),
        exact_hits=_count(total, "cache_hits_exact"),
        semantic_hits=_count(total, "cache_hits_semantic"),
        checks=_count(total, "cache_checks"),
        checks_right=_count(total, "cache_checks_right"),
        accuracy=share(total, ("cache_checks_right",), ("cache_checks",)),
        hit_rate=share(total, HITS, ("cache_lookups",)),
        ttl_seconds=ttl_seconds,
        semantic_available=has_vectors,
        prefix_cache=PrefixCacheStats(
            queried_tokens=_count(total, "prefix_queried_tokens"),
            cached_tokens=_count(total, "prefix_cached_tokens"),
            hit_rate=share(total, ("prefix_cached_tokens",), ("prefix_queried_tokens",)),
            evictions=_count(total, "prefix_evictions"),
            workers=[_to_worker(one, state) for one in workers if (state := EngineState.of_worker(one.info))],
        ),
    )


def _to_worker(worker: LiveProcess, state: EngineState) -> WorkerCacheStats:
    return WorkerCacheStats(
        worker=worker.name,
        model=worker.info.get("name"),
        blocks=state.num_blocks,
        used_blocks=state.num_used_blocks,
        cached_blocks=state.num_cached_blocks,
        occupancy=round(state.occupancy, 4),
        queried_tokens=state.prefix_queried_tokens,
        cached_tokens=state.prefix_cached_tokens,
        hit_rate=None if state.hit_rate is None else round(state.hit_rate, 4),
        evictions=state.prefix_evictions,
    )


def busy_share(readings: Readings, names: tuple[str, ...], seconds: float) -> float | None:
    """Return the share of `seconds` that was spent on these; None: no time has passed."""
    spent = sum(readings.get(name, 0.0) for name in names)
    return round(min(1.0, spent / seconds), 4) if seconds else None


def share(readings: Readings, part: tuple[str, ...], whole: tuple[str, ...]) -> float | None:
    """Return part over whole; None where there is no whole."""
    of = sum(readings.get(name, 0.0) for name in whole)
    # A lookup and its hit may be counted in different minutes.
    return round(min(1.0, sum(readings.get(name, 0.0) for name in part) / of), 4) if of else None


def _count(readings: Readings, *names: str) -> int:
    return round(sum(readings.get(name, 0.0) for name in names))
