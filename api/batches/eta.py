"""Estimates when a live batch ends, and how many output tokens it has then."""

from dataclasses import dataclass

from worker.forecasts.forecaster import Forecaster
from worker.forecasts.ranges import Range
from worker.store.batches.batch_views import BatchView

# The least time left that is reported: a batch with work left does not end at once.
LEAST_SECONDS = 0.1
# Without a forecast, the ETA comes from the batch's own rate, which may be off by this factor each way.
RATE_DOUBT = 2.0


@dataclass(frozen=True, slots=True)
class Eta:
    """The seconds until a batch ends: expected, low and high."""

    seconds: float
    low: float
    high: float


def expected_tokens(view: BatchView, forecaster: Forecaster | None) -> int:
    """Return the expected output tokens of the batch at its end; only an ended batch needs no forecaster."""
    done = view.output_tokens + view.running_tokens
    return done if forecaster is None else round(done + forecaster.work_of(view).output_tokens.expected)


def estimate(view: BatchView, forecaster: Forecaster | None) -> Eta | None:
    """Return the time left; None for an ended or paused batch, or if nothing was measured yet."""
    if forecaster is None or view.status.is_terminal or view.paused_at is not None:
        return None
    left = forecaster.left_of(view) or _by_own_rate(view, forecaster)
    if left is None:
        return None
    return Eta(*(round(max(one, LEAST_SECONDS), 1) for one in (left.expected, left.low, left.high)))


def _by_own_rate(view: BatchView, forecaster: Forecaster) -> Range | None:
    """Return the seconds left at the batch's own rate; None if it has none yet."""
    rate = view.tokens_per_second or _rate_so_far(view)
    if not rate:
        return None
    left = forecaster.work_of(view).output_tokens * (1 / rate)
    return left.widened(1 / RATE_DOUBT, RATE_DOUBT)


def _rate_so_far(view: BatchView) -> float | None:
    done = view.output_tokens + view.running_tokens
    if view.started_at is None or not done:
        return None
    return done / max(0.001, (view.read_at - view.started_at).total_seconds())
