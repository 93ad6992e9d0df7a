"""Count what the runners of one process do that no row says. Readings only grow."""

import threading
from collections import Counter


class RunMeters:
    """Counts lookups in the response cache."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readings: Counter[str] = Counter()

    def looked_up(self, num_requests: int) -> None:
        """Count requests that were looked up in the response cache."""
        with self._lock:
            self._readings["cache_lookups"] += num_requests

    def readings(self) -> Counter[str]:
        """Return a copy of the counts so far."""
        with self._lock:
            return self._readings.copy()
