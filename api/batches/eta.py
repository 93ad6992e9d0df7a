"""When a batch will have ended: what it still generates, by what it has, at its measured rate."""

from dataclasses import dataclass
from math import sqrt

from worker.store.batch_views import BatchView

NINE_IN_TEN = 1.645  # standard deviations to each side of a normal distribution's mean
RATE_DEVIATION = 0.1  # of the measured rate, relative
# Before anything is done a request may end at once or at its limit.
UNKNOWN_SHARE, UNKNOWN_DEVIATION = 0.5, 0.3


@dataclass(frozen=True, slots=True)
class Remaining:
    """Output tokens that are still to come, and the standard deviation of that guess."""

    tokens: float
    deviation: float


@dataclass(frozen=True, slots=True)
class Eta:
    """Seconds to the end."""

    seconds: float
    low: float
    high: float


def remaining(view: BatchView) -> Remaining:
    """Return what a batch still generates if its other requests are as long as its completed ones were."""
    if view.status.is_terminal:
        return Remaining(0.0, 0.0)
    count = view.num_requests - view.num_settled
    most = float(view.max_output_tokens - view.settled_max_tokens)
    if view.num_completed:
        mean = view.completed_output_tokens / view.num_completed
        variance = max(0.0, view.output_tokens_squared / view.num_completed - mean**2)
        # Each one scatters, and the mean itself is known from a sample only.
        deviation = sqrt(count * variance + count**2 * variance / view.num_completed)
        tokens = min(count * mean, most)
    else:
        tokens, deviation = most * UNKNOWN_SHARE, most * UNKNOWN_DEVIATION
    tokens = min(max(tokens - view.running_tokens, 0.0), max(most - view.running_tokens, 0.0))
    return Remaining(tokens, min(deviation, most))


def expected_tokens(view: BatchView) -> int:
    """Return how many output tokens the batch will have in the end."""
    return round(view.output_tokens + view.running_tokens + remaining(view).tokens)


def estimate(view: BatchView, *, tokens_ahead: float, workers_rate: float | None) -> Eta | None:
    """Return when a batch will have ended; None without a rate to judge by, or when it waits for people.

    Args:
        tokens_ahead: what others generate before it.
        workers_rate: output tokens a second of the live workers, for a batch that has none of its own yet.

    """
    if view.status.is_terminal or view.paused_at is not None:
        return None
    rate = view.tokens_per_second or _rate_so_far(view) or workers_rate
    if not rate:
        return None
    left = remaining(view)
    tokens = left.tokens + tokens_ahead
    spread = sqrt((NINE_IN_TEN * left.deviation) ** 2 + (NINE_IN_TEN * RATE_DEVIATION * tokens) ** 2)
    return Eta(*(round(one / rate, 1) for one in (tokens, max(0.0, tokens - spread), tokens + spread)))


def _rate_so_far(view: BatchView) -> float | None:
    done = view.output_tokens + view.running_tokens
    if view.started_at is None or not done:
        return None
    return done / max(0.001, (view.read_at - view.started_at).total_seconds())
