"""Name the counters of processes. Every reading only grows; rates come from differences of readings."""

from bisect import bisect_left
from collections.abc import Mapping

Readings = Mapping[str, float]

# Upper bounds of the latency histogram, seconds.
LATENCY_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 1800.0),
)
# Description of each counter; Prometheus shows this text.
COUNTERS = {
    "requests_completed": "Requests that completed, however they were answered",
    "requests_failed": "Requests that failed",
    "requests_deduplicated": "Requests answered by an identical one of their batch",
    "cache_lookups": "Requests looked up in the response cache",
    "cache_hits_exact": "Requests answered by the exact response cache",
    "cache_hits_semantic": "Requests answered by the semantic response cache",
    "input_tokens": "Prompt tokens of requests that have a result",
    "output_tokens": "Output tokens of requests that have a result",
    "steps": "Steps of the engine",
    "prefill_tokens": "Prompt tokens run through the model for the first time",
    "decode_tokens": "Tokens generated",
    "recomputed_tokens": "Tokens run through the model again after a preemption",
    "computed_tokens": "Rows run through the model for a request",
    "padding_tokens": "Rows run through the model to fill a step up",
    "prefix_queried_tokens": "Prompt tokens looked up in the prefix cache",
    "prefix_cached_tokens": "Prompt tokens found in the prefix cache",
    "prefix_evictions": "Blocks of the prefix cache that were needed for something else",
    "preemptions": "Sequences that lost their Blocks and had to wait",
    "scheduled_sequences": "Sequences in a step, summed over steps",
    "sequence_rows": "Sequences a step has room for, summed over steps",
    "prefill_seconds": "Seconds of the device spent on tokens of prompts",
    "decode_seconds": "Seconds of the device spent on tokens of outputs",
    "padding_seconds": "Seconds of the device spent on rows that fill a step up",
}
LATENCY_SUM = "latency_seconds"


def latency_bucket(seconds: float) -> str:
    """Return the name of the reading that counts requests of this latency."""
    index = bisect_left(LATENCY_BOUNDS, seconds)
    return bucket_name(LATENCY_BOUNDS[index] if index < len(LATENCY_BOUNDS) else None)


def bucket_name(bound: float | None) -> str:
    """Return the name of the reading for latencies up to a bound, above the one before; None: no bound."""
    return "latency_over" if bound is None else f"latency_{bound:g}"


def latency_counts(readings: Readings) -> list[float]:
    """Return how many requests fell into each bucket; the last bucket has no upper bound."""
    return [readings.get(bucket_name(bound), 0.0) for bound in (*LATENCY_BOUNDS, None)]


def latency_quantile(readings: Readings, share: float) -> float | None:
    """Return the latency in seconds that `share` of the requests did not exceed; None: there is no request.

    Assumes that latencies are spread evenly within a bucket, and that none exceeds the last bound.
    """
    counts = latency_counts(readings)
    wanted = share * sum(counts)
    if not wanted:
        return None
    low = 0.0
    for bound, count in zip(LATENCY_BOUNDS, counts, strict=False):
        if count and wanted <= count:
            return low + (bound - low) * wanted / count
        wanted -= count
        low = bound
    return LATENCY_BOUNDS[-1]
