"""Limits how often a tenant may call, counted in Redis by `limits`. Without Redis every call passes."""

import logging
import math
import time

from limits import RateLimitItemPerMinute
from limits.storage import RedisStorage
from limits.strategies import SlidingWindowCounterRateLimiter
from redis import RedisError

from api.errors import RateLimitedError
from api.guards.auth import Caller

logger = logging.getLogger(__name__)

# After Redis failed, calls pass uncounted for this long: waiting for it would slow down each of them.
PAUSE_SECONDS = 5.0


class RateLimiter:
    """A sliding window of one minute per tenant, shared by all processes of the API."""

    def __init__(self, redis_url: str) -> None:
        storage = RedisStorage(
            redis_url, key_prefix="headrace-calls", socket_timeout=1, socket_connect_timeout=1
        )
        self._window = SlidingWindowCounterRateLimiter(storage)
        self._paused_until = 0.0

    def check(self, caller: Caller) -> None:
        """Count a call.

        Raises:
            RateLimitedError: the call is over the limit; it was not counted.

        """
        if caller.calls_per_minute is None or time.monotonic() < self._paused_until:
            return
        limit = RateLimitItemPerMinute(caller.calls_per_minute)
        try:
            if self._window.hit(limit, caller.tenant_id):
                return
            reset_time = self._window.get_window_stats(limit, caller.tenant_id).reset_time
        except RedisError as error:
            logger.warning("Redis does not answer, calls are not limited for now: %s", error)
            self._paused_until = time.monotonic() + PAUSE_SECONDS
            return
        raise RateLimitedError(
            f"The tenant may make {caller.calls_per_minute} calls a minute. Wait, then try again.",
            code="rate_limit_exceeded",
            retry_after=max(1, math.ceil(reset_time - time.time())),
        )
