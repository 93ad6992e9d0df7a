"""Computes totals, rates and shares from the Readings of meters."""

from api.metrics.schemas import CacheStats, PrefixCacheStats, Summary
from worker.contract.meters import LATENCY_SUM, Readings, latency_counts, latency_quantile
from worker.store.cache.response_cache import CacheSize
from worker.store.counts.meters import Measured
from worker.store.watching.queue_depth import QueueDepth

HITS = ("cache_hits_exact", "cache_hits_semantic")


def to_summary(measured: Measured, depth: QueueDepth, num_workers: int) -> Summary:
    """Return totals, rates and shares."""
    total, recent, seconds = measured.total, measured.recent, measured.recent_seconds
    finished = ("requests_completed", "requests_failed")
    return Summary(
        requests_total=_count(total, *finished),
        requests_failed=_count(total, "requests_failed"),
        requests_deduplicated=_count(total, "requests_deduplicated"),
        input_tokens=_count(total, "input_tokens"),
        output_tokens=_count(total, "output_tokens"),
        window_seconds=round(seconds, 3),
        requests_per_second=round(_count(recent, *finished) / seconds, 4) if seconds else 0.0,
        tokens_per_second=round(_count(recent, "decode_tokens") / seconds, 2) if seconds else 0.0,
        avg_latency_ms=_mean_latency_ms(recent),
        p50_latency_ms=_quantile_ms(recent, 0.5),
        p95_latency_ms=_quantile_ms(recent, 0.95),
        p99_latency_ms=_quantile_ms(recent, 0.99),
        batch_utilization=share(recent, ("scheduled_sequences",), ("sequence_rows",)),
        padding_efficiency=share(recent, ("computed_tokens",), ("computed_tokens", "padding_tokens")),
        cache_hit_rate=share(recent, HITS, ("cache_lookups",)),
        prefix_cache_hit_rate=share(recent, ("prefix_cached_tokens",), ("prefix_queried_tokens",)),
        device_seconds={
            kind: round(recent.get(f"{kind}_seconds", 0.0), 3) for kind in ("prefill", "decode", "padding")
        },
        workers=num_workers,
        batches=depth.batches,
        requests_pending=depth.requests_pending,
        shards_ready=depth.shards_ready,
        shards_running=depth.shards_running,
        webhooks_pending=depth.deliveries_pending,
    )


def to_cache_stats(total: Readings, size: CacheSize, *, ttl_seconds: float, has_vectors: bool) -> CacheStats:
    """Return the size of the response cache, and the hits of both caches."""
    return CacheStats(
        total_entries=size.num_entries,
        semantic_entries=size.num_semantic,
        total_size_mb=round(size.num_bytes / 2**20, 3),
        lookups=_count(total, "cache_lookups"),
        hits=_count(total, *HITS),
        exact_hits=_count(total, "cache_hits_exact"),
        semantic_hits=_count(total, "cache_hits_semantic"),
        hit_rate=share(total, HITS, ("cache_lookups",)),
        ttl_seconds=ttl_seconds,
        semantic_available=has_vectors,
        prefix_cache=PrefixCacheStats(
            queried_tokens=_count(total, "prefix_queried_tokens"),
            cached_tokens=_count(total, "prefix_cached_tokens"),
            hit_rate=share(total, ("prefix_cached_tokens",), ("prefix_queried_tokens",)),
            evictions=_count(total, "prefix_evictions"),
        ),
    )


def share(readings: Readings, part: tuple[str, ...], whole: tuple[str, ...]) -> float | None:
    """Return part over whole; None where there is no whole."""
    of = sum(readings.get(name, 0.0) for name in whole)
    # A lookup and its hit may be counted in different minutes.
    return round(min(1.0, sum(readings.get(name, 0.0) for name in part) / of), 4) if of else None


def _count(readings: Readings, *names: str) -> int:
    return round(sum(readings.get(name, 0.0) for name in names))


def _mean_latency_ms(readings: Readings) -> float | None:
    count = sum(latency_counts(readings))
    return round(1000 * readings.get(LATENCY_SUM, 0.0) / count, 3) if count else None


def _quantile_ms(readings: Readings, part: float) -> float | None:
    seconds = latency_quantile(readings, part)
    return None if seconds is None else round(1000 * seconds, 3)
