"""Write a gpu worker's counts to Postgres, where every API process can read them."""

import time
from collections import Counter

from worker.engine.requests.stats import EngineStats
from worker.runs.run_meters import RunMeters
from worker.store.counts import meters
from worker.store.database.session import Store

# The engine's counters whose names are too vague outside it.
RENAMED = {
    "queried_tokens": "prefix_queried_tokens",
    "cached_tokens": "prefix_cached_tokens",
    "evictions": "prefix_evictions",
}
SHOWN = (
    *("steps", "prefill_tokens", "decode_tokens", "recomputed_tokens", "computed_tokens", "padding_tokens"),
    *("queried_tokens", "cached_tokens", "evictions", "preemptions"),
    *("kv_used_block_steps", "kv_block_steps", "lookup_guessed_tokens", "lookup_right_tokens"),
    *("grammar_guessed_tokens", "grammar_right_tokens", "draft_guessed_tokens", "draft_right_tokens"),
    *("medusa_guessed_tokens", "medusa_right_tokens"),
    *("limit_cuts", "limit_raises"),
    *("scheduled_sequences", "sequence_rows", "prefill_seconds", "decode_seconds", "padding_seconds"),
)


class MeterWriter:
    """Writes what was counted since the last successful write, so nothing is lost when a write fails."""

    def __init__(self, store: Store, worker: str, run_meters: RunMeters, *, model: str | None = None) -> None:
        self._store = store
        self._worker = worker
        self._model = model
        self._run_meters = run_meters
        self._written: Counter[str] = Counter()

    def write(self, stats: EngineStats) -> None:
        """Add the counts since the last write to this minute's row."""
        readings = self._run_meters.readings()
        readings.update({RENAMED.get(name, name): getattr(stats, name) for name in SHOWN})
        readings["cpu_seconds"] = time.process_time()  # type: ignore[assignment]  # Counter takes floats
        new = readings.copy()
        new.subtract(self._written)
        with self._store.transaction() as session:
            meters.add(session, self._worker, new, model=self._model)
        self._written = readings
