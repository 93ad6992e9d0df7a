"""Estimates when a live batch ends, and how many output tokens it has then."""

from collections.abc import Mapping
from dataclasses import dataclass

from worker.forecasts.forecaster import Forecaster
from worker.forecasts.ranges import Range
from worker.store.batches.batch_views import BatchView

# The least time left that is reported: a batch with work left does not end at once.
LEAST_SECONDS = 0.1
# Without a forecast, the ETA comes from the batch's own rate, which may be off by this factor each way.
RATE_DOUBT = 2.0

Forecasters = Mapping[str | None, Forecaster]  # by model


@dataclass(frozen=True, slots=True)
class Eta:
    """The seconds until a batch ends: expected, low and high."""

    seconds: float
    low: float
    high: float


def expected_tokens(view: BatchView, forecasters: Forecasters) -> int:
    """Return the expected output tokens of the batch at its end; an ended batch needs no forecasters."""
    left = 0.0
    if not view.status.is_terminal:
        left = sum(
            forecasters[one.model_fingerprint].work_of(one).output_tokens.expected for one in view.by_model()
        )
    return round(view.output_tokens + view.running_tokens + left)


def estimate(view: BatchView, forecasters: Forecasters) -> Eta | None:
    """Return the time left; None for an ended or paused batch, or if nothing was measured yet.

    A mixed batch ends when the last of its models is done.
    """
    if view.status.is_terminal or view.paused_at is not None:
        return None
    found = [_left(one, forecasters[one.model_fingerprint]) for one in view.by_model()]
    left = [one for one in found if one is not None]
    if not left or len(left) < len(found):
        return None
    last = (max(one.expected for one in left), max(one.low for one in left), max(one.high for one in left))
    return Eta(*(round(max(one, LEAST_SECONDS), 1) for one in last))


def _left(view: BatchView, forecaster: Forecaster) -> Range | None:
    return forecaster.left_of(view) or _by_own_rate(view, forecaster)


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
