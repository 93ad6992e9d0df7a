"""Count the work of one process's shard runners. Readings only grow; any thread may add to them."""

import threading
from collections import Counter
from collections.abc import Iterable

from worker.contract.meters import LATENCY_SUM, latency_bucket
from worker.values.caching import Source
from worker.values.outcomes import Outcome
from worker.values.results import NewResult

HITS = {Source.EXACT_CACHE: "cache_hits_exact", Source.SEMANTIC_CACHE: "cache_hits_semantic"}


class RunMeters:
    """Counts results, lookups and hits of the response cache, and latencies of requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readings: Counter[str] = Counter()

    def saved(self, results: Iterable[NewResult]) -> None:
        """Count stored results, with the copies that they answered."""
        counted: Counter[str] = Counter()
        for result in results:
            copies = result.num_copies
            if result.outcome is Outcome.COMPLETED:
                counted["requests_completed"] += copies
            elif result.outcome is Outcome.FAILED:
                counted["requests_failed"] += copies
            hits = HITS.get(result.source)
            if hits is not None:
                counted[hits] += copies
            else:
                counted["requests_deduplicated"] += copies - 1
            counted["input_tokens"] += result.num_prompt_tokens * copies
            counted["output_tokens"] += result.num_output_tokens * copies
        self._add(counted)

    def looked_up(self, num_requests: int) -> None:
        """Count requests that were looked up in the response cache."""
        self._add(Counter(cache_lookups=num_requests))

    def took(self, seconds: float, num_requests: int) -> None:
        """Count requests whose outcome came `seconds` after their shard was claimed."""
        counted: Counter[str] = Counter({latency_bucket(seconds): num_requests})
        counted[LATENCY_SUM] = seconds * num_requests  # type: ignore[assignment]
        self._add(counted)

    def readings(self) -> Counter[str]:
        """Return a copy of the counts so far."""
        with self._lock:
            return self._readings.copy()

    def _add(self, counted: "Counter[str]") -> None:
        with self._lock:
            self._readings.update(counted)
