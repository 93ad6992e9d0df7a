"""Moves the limits of Steps so that requests take about a given time in the engine. Knows no tensors."""

from worker.engine.scheduling.step_limits import StepLimits

NUM_MEASURED = 10  # requests that end before the limits change
ROOM = 0.8  # share of the target below which the limits grow


class LatencyTarget:
    """Cuts the limits of a Step's Sequences and tokens by a quarter, or raises them by one.

    It looks at the mean time of the last NUM_MEASURED requests that have run under the present limits only.
    Between ROOM of the target and the target nothing changes. The Sequences stay between 1 and the configured
    limit. The tokens follow in proportion, and are never fewer than that limit, so that every Sequence that
    still runs has its token. Running Sequences are not interrupted.
    """

    def __init__(self, target_seconds: float, limits: StepLimits) -> None:
        self.num_cuts = 0
        self.num_raises = 0
        self._target = target_seconds
        self._limits = limits
        self._most = self._num_sequences = limits.max_num_sequences
        self._most_tokens = limits.max_tokens
        self._seconds: list[float] = []
        self._changed_at = 0.0

    def ended(self, started_at: float, now: float, num_running: int) -> None:
        """Record a request that ran from `started_at` to `now`, beside `num_running` Sequences."""
        if started_at < self._changed_at:
            return
        self._seconds.append(now - started_at)
        if len(self._seconds) < NUM_MEASURED:
            return
        mean = sum(self._seconds) / NUM_MEASURED
        self._seconds.clear()
        step = max(1, self._num_sequences // 4)
        if mean > self._target:
            # What runs may be fewer than the limit already.
            self._move(max(1, min(self._num_sequences, num_running) - step), now)
        elif mean < ROOM * self._target:
            self._move(min(self._most, self._num_sequences + step), now)

    def _move(self, num_sequences: int, now: float) -> None:
        if num_sequences == self._num_sequences:
            return
        self.num_cuts += num_sequences < self._num_sequences
        self.num_raises += num_sequences > self._num_sequences
        self._num_sequences, self._changed_at = num_sequences, now
        tokens = self._most_tokens * num_sequences // self._most
        self._limits.limit(num_sequences, max(self._most, tokens))
