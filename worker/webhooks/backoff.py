"""Schedule the retries of a webhook: ten attempts over about three days."""

import random
from datetime import timedelta

# Seconds to wait before each attempt after the first.
DELAYS = (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
JITTER = 0.2


def retry_in(attempt: int, *, retry_after: float | None = None) -> timedelta | None:
    """Return how long to wait after attempt number `attempt` (from 1) failed, or None to give up.

    A receiver's `Retry-After` (seconds) can lengthen the wait up to a day, never shorten it.
    """
    if attempt > len(DELAYS):
        return None
    delay = DELAYS[attempt - 1] * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - jitter is no secret
    return timedelta(seconds=max(delay, min(retry_after or 0, 86_400)))
