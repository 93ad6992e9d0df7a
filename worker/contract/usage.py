"""Name the readings of usage: counts of Results, ended Batches and DeliveryAttempts, as they are stored."""

from dataclasses import dataclass
from enum import StrEnum

# Descriptions of plain counters; Prometheus shows these texts.
COUNTERS = {
    "requests_completed": "Requests that completed, however they were answered",
    "requests_failed": "Requests that failed",
    "requests_cancelled": "Requests that were cancelled, or whose batch ended before they were done",
    "requests_deduplicated": "Requests answered by an identical one of their batch",
    "cache_hits_exact": "Requests answered by the exact response cache",
    "cache_hits_semantic": "Requests answered by the semantic response cache",
    "cache_checks": "Requests that it had an answer for and that were run to check it",
    "cache_checks_right": "Of these, requests for which its answer was right",
    "input_tokens": "Prompt tokens of requests that have a result",
    "cached_tokens": "Of these, tokens that were not computed for the request",
    "output_tokens": "Output tokens of requests that have a result",
}
SECONDS = ("prefill_seconds", "decode_seconds", "padding_seconds")
COST = "cost_billionths"  # of the currency
# Counters with labels.
BATCHES_ENDED = "batches_ended"  # lane, status
WEBHOOK_ATTEMPTS = "webhook_attempts"  # outcome
WEBHOOK_SECONDS = "webhook_seconds"  # a histogram of attempts


class Latency(StrEnum):
    """A part of a Request's time, as a histogram by lane and priority."""

    TOTAL = "total"
    CLAIMED = "claimed"
    QUEUE = "queue"
    FIRST_TOKEN = "first_token"  # noqa: S105 - of an output


@dataclass(frozen=True, slots=True)
class Shown:
    """The name and the text under which Prometheus shows a histogram."""

    metric: str
    description: str


LATENCIES = {
    Latency.TOTAL: Shown("headrace_request_seconds", "From the acceptance of a request to its result"),
    Latency.CLAIMED: Shown(
        "headrace_request_latency_seconds", "From the claim of a request's shard to its result"
    ),
    Latency.QUEUE: Shown(
        "headrace_request_queue_seconds", "From the acceptance of a request to its first step in the engine"
    ),
    Latency.FIRST_TOKEN: Shown(
        "headrace_time_to_first_token_seconds", "From the acceptance of a request to its first output token"
    ),
}


class PriorityClass(StrEnum):
    """Label of priorities in histograms, so that they have few series."""

    LOW = "low"  # below 0
    NORMAL = "normal"  # 0
    HIGH = "high"  # above 0
