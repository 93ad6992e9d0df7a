"""How fast this worker's engine generates while it has work."""

import math
import time

from worker.engine.engine_thread import EngineThread

SMOOTHING_SECONDS = 60.0


class EngineRate:
    """Output tokens a second between readings, smoothed; readings of an idle engine change nothing."""

    def __init__(self) -> None:
        self._rate: float | None = None
        self._tokens = 0
        self._read_at: float | None = None  # None: it was idle then

    def read(self, engine: EngineThread) -> float | None:
        """Return the rate, None before there was work to measure it by."""
        now, tokens = time.monotonic(), engine.stats.decode_tokens
        is_busy = bool(engine.num_running or engine.num_waiting)
        if self._read_at is not None and is_busy and tokens > self._tokens:
            elapsed = now - self._read_at
            rate = (tokens - self._tokens) / elapsed
            share = 1.0 if self._rate is None else 1 - math.exp(-elapsed / SMOOTHING_SECONDS)
            self._rate = rate if self._rate is None else self._rate + share * (rate - self._rate)
        self._tokens, self._read_at = tokens, now if is_busy else None
        return None if self._rate is None else round(self._rate, 1)
