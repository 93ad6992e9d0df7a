"""Holds generations back by a batch policy, whatever their order. Knows no tensors.

Urgent Sequences and readings pass every gate: a client waits for the former, and the BatchFormer has held the
latter back already.
"""

import sys
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items

from worker.engine.requests.batch_policy import BatchPolicy
from worker.engine.sequences.sequence import Sequence

NUM_MEASURED = 10  # Steps that the adaptive gate measures before it changes its limit
ROOM = 0.8  # share of the latency target below which the limit grows


class BatchGate:
    """The gate of continuous batching and of every policy that only orders: always open."""

    max_running = sys.maxsize  # most Sequences that may run at once

    def opens(self, num_waiting: int, running: Items[Sequence]) -> bool:  # noqa: ARG002
        """Return whether any of `num_waiting` generations may start in this Step."""
        return True

    def admits(self, sequence: Sequence, running: Items[Sequence]) -> bool:  # noqa: ARG002
        """Return whether a generation may start now; if not, others may pass it."""
        return True

    def has_room(self, sequence: Sequence, running: Items[Sequence]) -> bool:  # noqa: ARG002
        """Return whether a generation fits beside the running ones; if not, it waits as for memory."""
        return True

    def started(self, sequence: Sequence) -> None:
        """Record that a generation starts."""

    def end_pass(self, *, is_cut: bool) -> None:
        """Record that admission ends for this Step; `is_cut`: more would have started in a larger Step."""

    def took(self, seconds: float, num_sequences: int) -> None:
        """Record the time of a Step for all running Sequences."""

    def wait_seconds(self, num_waiting: int) -> float:  # noqa: ARG002
        """Return the seconds until one of `num_waiting` generations may start, while none runs."""
        return 0.0


class FormedBatches(BatchGate):
    """Lets in a number of generations at a time: fixed batches, or whoever waits when a window ends.

    A fixed batch starts when all of the last one has ended and `size` generations wait, or the first has
    waited for `seconds`. Without a size, the gate opens `seconds` after it opened last.
    """

    def __init__(self, size: int | None, seconds: float, clock: Callable[[], float]) -> None:
        self._size = size
        self._seconds = seconds
        self._clock = clock
        self._num_left = 0  # generations that may still start
        self._since: float | None = None  # when the first began to wait, or a window was open last

    def opens(self, num_waiting: int, running: Items[Sequence]) -> bool:
        """Return whether a batch is due or still incomplete."""
        now = self._clock()
        if not num_waiting:
            self._num_left = 0
            if self._size is not None:
                self._since = None
        elif not self._num_left:
            if self._size is not None and self._since is None:
                self._since = now
            if self._is_due(num_waiting, running, now):
                self._num_left = num_waiting if self._size is None else min(self._size, num_waiting)
                self._since = now if self._size is None else None
        return self._num_left > 0

    def _is_due(self, num_waiting: int, running: Items[Sequence], now: float) -> bool:
        is_over = self._since is None or now - self._since >= self._seconds
        if self._size is None:
            return is_over
        return not any(one.may_be_held for one in running) and (num_waiting >= self._size or is_over)

    def admits(self, sequence: Sequence, running: Items[Sequence]) -> bool:  # noqa: ARG002
        """Return whether the open batch has a place left."""
        return self._num_left > 0

    def started(self, sequence: Sequence) -> None:  # noqa: ARG002
        """Take a place of the open batch."""
        self._num_left -= 1

    def end_pass(self, *, is_cut: bool) -> None:
        """Close the batch, unless only the size of the Step has kept others out of it."""
        if not is_cut:
            self._num_left = 0

    def wait_seconds(self, num_waiting: int) -> float:
        """Return the seconds until the next batch is due."""
        if self._num_left or self._since is None or num_waiting >= (self._size or num_waiting + 1):
            return 0.0
        return max(0.0, self._since + self._seconds - self._clock())


class AdaptiveSize(BatchGate):
    """Moves the number of running Sequences between 1 and `most`, by the mean time of the last Steps.

    Above the target it falls by a quarter; below ROOM of the target it grows by a quarter; between them it
    stays. Running Sequences are not interrupted.
    """

    def __init__(self, target_seconds: float, most: int) -> None:
        self.max_running = most
        self._most = most
        self._target = target_seconds
        self._seconds: deque[float] = deque(maxlen=NUM_MEASURED)

    def took(self, seconds: float, num_sequences: int) -> None:
        """Adapt the limit after NUM_MEASURED Steps at the present one."""
        self._seconds.append(seconds)
        if len(self._seconds) < NUM_MEASURED:
            return
        mean = sum(self._seconds) / NUM_MEASURED
        step = max(1, self.max_running // 4)
        if mean > self._target:
            # What runs may be fewer than the limit already.
            self.max_running = max(1, min(self.max_running, num_sequences) - step)
        elif mean < ROOM * self._target:
            self.max_running = min(self._most, self.max_running + step)
        else:
            return
        self._seconds.clear()


class Longest(BatchGate):
    """Limits what all running generations have at their longest, prompt and output together.

    It counts tokens, or Blocks of `unit` tokens. A generation that alone is over the limit runs alone.
    """

    def __init__(self, limit: int, unit: int = 1) -> None:
        self._limit = limit
        self._unit = unit

    def has_room(self, sequence: Sequence, running: Items[Sequence]) -> bool:
        """Return whether a generation fits beside the running ones, each at its longest."""
        beside = [one for one in running if one.may_be_held]
        return not beside or sum(map(self._size, beside)) + self._size(sequence) <= self._limit

    def _size(self, sequence: Sequence) -> int:
        return -(
            -min(sequence.max_length, sequence.num_prompt_tokens + sequence.params.max_tokens) // self._unit
        )


class LengthBuckets(BatchGate):
    """Runs only generations together whose prompts are of one bucket of lengths.

    A bucket takes new ones until one of another has waited for `seconds`; then it runs to its end, and the
    other's turn comes.
    """

    def __init__(self, borders: tuple[int, ...], seconds: float, clock: Callable[[], float]) -> None:
        self._borders = borders
        self._seconds = seconds
        self._clock = clock
        self._bucket: int | None = None  # of what runs; None: of whatever comes first
        self._held: tuple[int, float] | None = None  # the bucket that waits, and since when

    def opens(self, num_waiting: int, running: Items[Sequence]) -> bool:  # noqa: ARG002
        """Choose the next bucket after the last one has ended: that which has waited, if any."""
        if not any(one.may_be_held for one in running):
            self._bucket, self._held = (None if self._held is None else self._held[0]), None
        return True

    def admits(self, sequence: Sequence, running: Items[Sequence]) -> bool:  # noqa: ARG002
        """Return whether a generation is of the bucket that runs, and that takes new ones."""
        bucket = bisect_left(self._borders, sequence.num_prompt_tokens)
        if self._bucket is None:
            self._bucket = bucket
        if bucket == self._bucket:
            return self._held is None or self._clock() - self._held[1] < self._seconds
        if self._held is None:
            self._held = bucket, self._clock()
        return False


def make_gate(
    policy: BatchPolicy,
    *,
    max_num_sequences: int,
    num_blocks: int,
    block_size: int,
    clock: Callable[[], float] = time.monotonic,
) -> BatchGate:
    """Return the gate of a policy."""
    match policy.name:
        case "fixed":
            size = min(policy.max_items or max_num_sequences, max_num_sequences)
            return FormedBatches(size, policy.window_seconds, clock)
        case "window":
            return FormedBatches(None, policy.window_seconds, clock)
        case "adaptive" if policy.latency_target_seconds is not None:
            return AdaptiveSize(policy.latency_target_seconds, max_num_sequences)
        case "token-budget" if policy.max_tokens is not None:
            return Longest(policy.max_tokens)
        case "memory":
            return Longest(max(1, int(policy.max_memory_share * num_blocks)), block_size)
        case "length-buckets":
            return LengthBuckets(policy.length_borders, policy.window_seconds, clock)
    return BatchGate()
