"""Computes what every reader shows of usage: percentiles, device time, cost. Nothing else computes them."""

from collections.abc import Iterable

from pydantic import BaseModel, Field

from worker.contract.distributions import Distribution, distributions
from worker.contract.meters import Readings
from worker.contract.prices import to_amount
from worker.contract.states import Lane
from worker.contract.usage import COST, SECONDS, Latency, PriorityClass

DIGITS = 6


class Cost(BaseModel):
    """An amount of money, at the prices that held when the work was done."""

    amount: float
    currency: str


class DeviceTime(BaseModel):
    """Device seconds: the time of each step, split over its tokens."""

    prefill: float = Field(description="for tokens of prompts")
    decode: float = Field(description="for tokens of outputs")
    padding: float = Field(description="for rows that only fill a step up")
    total: float


class Percentiles(BaseModel):
    """Percentiles of a histogram, in milliseconds. They are interpolated within its buckets."""

    requests: int
    mean_ms: float | None
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None


class LaneLatency(BaseModel):
    """How long requests of one lane and priority took; cancelled requests are left out."""

    lane: Lane
    priority: PriorityClass | None = Field(description="below 0, 0 or above 0; null: of all priorities")
    total: Percentiles = Field(description="from the acceptance of a request to its result")
    claimed: Percentiles = Field(description="from the claim of its shard to its result")
    queue: Percentiles = Field(description="from its acceptance to its first step in the engine")
    first_token: Percentiles = Field(description="from its acceptance to its first output token")


class UsageFigures(BaseModel):
    """What requests with a result came to."""

    requests_completed: int
    requests_failed: int
    requests_cancelled: int
    requests_deduplicated: int = Field(description="of them, answered by an identical one of their batch")
    input_tokens: int
    cached_tokens: int = Field(description="of the input tokens, not computed for the request")
    output_tokens: int
    device_seconds: DeviceTime
    tokens_per_device_second: float | None = Field(description="output tokens")
    cost: Cost


def total_of(several: Iterable[Readings]) -> Readings:
    """Return the sum of readings."""
    total: dict[str, float] = {}
    for readings in several:
        for name, value in readings.items():
            total[name] = total.get(name, 0.0) + value
    return total


def to_usage(readings: Readings, currency: str) -> UsageFigures:
    """Return the figures of usage readings."""
    seconds = to_device_time(*(readings.get(name, 0.0) for name in SECONDS))
    output_tokens = _count(readings, "output_tokens")
    return UsageFigures(
        requests_completed=_count(readings, "requests_completed"),
        requests_failed=_count(readings, "requests_failed"),
        requests_cancelled=_count(readings, "requests_cancelled"),
        requests_deduplicated=_count(readings, "requests_deduplicated"),
        input_tokens=_count(readings, "input_tokens"),
        cached_tokens=_count(readings, "cached_tokens"),
        output_tokens=output_tokens,
        device_seconds=seconds,
        tokens_per_device_second=rate(output_tokens, seconds.total),
        cost=to_cost(readings.get(COST, 0.0), currency),
    )


def to_cost(billionths: float, currency: str) -> Cost:
    """Return a stored cost as the client sees it."""
    return Cost(amount=to_amount(billionths), currency=currency)


def to_device_time(prefill: float, decode: float, padding: float) -> DeviceTime:
    """Return device seconds as the client sees them."""
    return DeviceTime(
        prefill=round(prefill, DIGITS),
        decode=round(decode, DIGITS),
        padding=round(padding, DIGITS),
        total=round(prefill + decode + padding, DIGITS),
    )


def rate(tokens: float, seconds: float) -> float | None:
    """Return tokens for each second; None: no second was measured."""
    return round(tokens / seconds, 2) if seconds else None


def to_latencies(readings: Readings) -> list[LaneLatency]:
    """Return the latencies of each lane, of all priorities together and of each that was seen."""
    found = {latency: distributions(readings, latency) for latency in Latency}
    seen = {labels for by_labels in found.values() for labels in by_labels}
    return [
        _to_lane(found, lane, priority)
        for lane in Lane
        for priority in (None, *PriorityClass)
        if any(of_lane == lane and priority in {None, of_class} for of_lane, of_class in seen)
    ]


def _to_lane(
    found: dict[Latency, dict[tuple[str, ...], Distribution]], lane: Lane, priority: PriorityClass | None
) -> LaneLatency:
    parts = {
        latency.value: to_percentiles(
            Distribution.merged(
                one
                for (of_lane, of_class), one in by_labels.items()
                if of_lane == lane and priority in {None, of_class}
            )
        )
        for latency, by_labels in found.items()
    }
    return LaneLatency(lane=lane, priority=priority, **parts)


def to_percentiles(seconds: Distribution) -> Percentiles:
    """Return the percentiles of a distribution."""
    return Percentiles(
        requests=round(seconds.count),
        mean_ms=_milliseconds(seconds.mean),
        p50_ms=_milliseconds(seconds.quantile(0.5)),
        p95_ms=_milliseconds(seconds.quantile(0.95)),
        p99_ms=_milliseconds(seconds.quantile(0.99)),
    )


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)


def _count(readings: Readings, name: str) -> int:
    return round(readings.get(name, 0.0))
