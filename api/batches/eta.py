"""When a batch will have ended, and with how many tokens: forecast from where it stands."""

from dataclasses import dataclass

from api.forecasts.forecaster import Forecaster
from api.forecasts.ranges import Range
from worker.store.batches.batch_views import BatchView

# A batch that has work left does not end this instant.
LEAST_SECONDS = 0.1
# How far a batch's own rate may be off, where nothing better is known: a factor each way.
RATE_DOUBT = 2.0


@dataclass(frozen=True, slots=True)
class Eta:
    """Seconds to the end."""

    seconds: float
    low: float
    high: float


def expected_tokens(view: BatchView, forecaster: Forecaster | None) -> int:
    """Return how many output tokens the batch will have in the end; only an ended one needs no forecaster."""
    done = view.output_tokens + view.running_tokens
    return done if forecaster is None else round(done + forecaster.work_of(view).output_tokens.expected)


def estimate(view: BatchView, forecaster: Forecaster | None) -> Eta | None:
    """Return when a batch will have ended; None without anything to judge by, or when it waits for people."""
    if forecaster is None or view.status.is_terminal or view.paused_at is not None:
        return None
    left = forecaster.left_of(view) or _by_own_rate(view, forecaster)
    if left is None:
        return None
    return Eta(*(round(max(one, LEAST_SECONDS), 1) for one in (left.expected, left.low, left.high)))


def _by_own_rate(view: BatchView, forecaster: Forecaster) -> Range | None:
    """Return what remains at the rate measured of the batch itself; None: there is none."""
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
