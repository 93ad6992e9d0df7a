"""Forms batches from a queue of items that each run once. Knows numbers, no tensors and no engine."""

import heapq
import time
from bisect import bisect_left
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from worker.engine.requests.batch_policy import BatchPolicy


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One item of the queue, with the tokens and Blocks it needs."""

    key: Hashable
    num_tokens: int
    num_blocks: int
    priority: int = 0  # higher goes first


@dataclass(frozen=True, slots=True, eq=False)
class _Queued:
    item: BatchItem
    bucket: "_Bucket"
    queued_at: float


@dataclass(slots=True)
class _Bucket:
    """Queued items of similar length, with their totals."""

    heap: list[tuple[float, int, _Queued]] = field(default_factory=list)  # also holds removed items
    num_items: int = 0
    num_tokens: int = 0
    num_blocks: int = 0


class BatchFormer:
    """Queue that forms one batch at a time: the next after every item of the last has ended.

    Items are ordered by arrival time minus `priority_seconds` for each level of priority, and by nothing
    else. A batch formed because a window ended starts with the first item in that order, so the wait of an
    item is bounded whatever arrives after it.
    """

    def __init__(
        self,
        policy: BatchPolicy,
        *,
        max_tokens: int,
        num_blocks: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_tokens = policy.max_tokens or max_tokens  # limit of a batch now; adapts to a latency target
        self._policy = policy
        self._most_tokens = self.max_tokens
        self._max_blocks = max(1, int(policy.max_memory_share * num_blocks))
        self._clock = clock
        self._buckets = [_Bucket() for _ in range(len(policy.length_borders) + 1)]
        self._queued: dict[Hashable, _Queued] = {}  # in order of arrival
        self._num_added = 0
        self._open: set[Hashable] = set()  # items of the last batch that have not ended
        self._open_tokens = 0
        self._formed_at = 0.0

    def __len__(self) -> int:
        return len(self._queued)

    def add(self, item: BatchItem) -> None:
        """Queue an item; raises ValueError if its key is queued already or in the open batch."""
        if item.key in self._queued or item.key in self._open:
            raise ValueError(f"item {item.key!r} is already queued")
        bucket = self._buckets[bisect_left(self._policy.length_borders, item.num_tokens)]
        queued = _Queued(item, bucket, self._clock())
        place = queued.queued_at - item.priority * self._policy.priority_seconds
        self._queued[item.key] = queued
        self._num_added += 1
        heapq.heappush(bucket.heap, (place, self._num_added, queued))
        bucket.num_items += 1
        bucket.num_tokens += item.num_tokens
        bucket.num_blocks += item.num_blocks

    def remove(self, key: Hashable) -> bool:
        """Remove a queued item; return False if it is not queued."""
        queued = self._queued.pop(key, None)
        if queued is None:
            return False
        queued.bucket.num_items -= 1
        queued.bucket.num_tokens -= queued.item.num_tokens
        queued.bucket.num_blocks -= queued.item.num_blocks
        return True

    def form(self) -> list[BatchItem]:
        """Return the next batch in order; empty while no batch is due or the last is still open."""
        bucket = self._due_bucket()
        batch: list[BatchItem] = []
        num_tokens = num_blocks = 0
        while bucket is not None and (first := self._first(bucket)) is not None:
            item = first[2].item
            num_tokens += item.num_tokens
            num_blocks += item.num_blocks
            if batch and self._is_over(len(batch) + 1, num_tokens, num_blocks):
                num_tokens -= item.num_tokens
                break
            self.remove(item.key)
            batch.append(item)
        if batch:
            self._open = {item.key for item in batch}
            self._open_tokens = num_tokens
            self._formed_at = self._clock()
        return batch

    def finish(self, key: Hashable) -> None:
        """Record that an item of the open batch has ended, in whatever way; ignores other items."""
        if key in self._open:
            self._open.remove(key)
            if not self._open:
                self._adapt(self._clock() - self._formed_at)

    @property
    def wait_seconds(self) -> float | None:
        """Seconds until a batch is due if nothing arrives; None: the queue is empty or a batch is open."""
        if self._open or not self._queued:
            return None
        if self._due_bucket() is not None:
            return 0.0
        return max(0.0, self._window_left())

    def _window_left(self) -> float:
        """Return the seconds until the oldest item has waited for `window_seconds`."""
        oldest = next(iter(self._queued.values()))
        return oldest.queued_at + self._policy.window_seconds - self._clock()

    def _due_bucket(self) -> _Bucket | None:
        if self._open or not self._queued:
            return None
        firsts = [(first, bucket) for bucket in self._buckets if (first := self._first(bucket)) is not None]
        if self._window_left() > 0:
            firsts = [(first, bucket) for first, bucket in firsts if self._is_full(bucket)]
        return min(firsts, key=lambda pair: pair[0][:2])[1] if firsts else None

    def _first(self, bucket: _Bucket) -> tuple[float, int, _Queued] | None:
        heap = bucket.heap
        while heap and self._queued.get(heap[0][2].item.key) is not heap[0][2]:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _is_full(self, bucket: _Bucket) -> bool:
        """Return whether the next batch cannot grow by waiting."""
        return self._is_over(bucket.num_items + 1, bucket.num_tokens + 1, bucket.num_blocks + 1)

    def _is_over(self, num_items: int, num_tokens: int, num_blocks: int) -> bool:
        return (
            num_items > (self._policy.max_items or num_items)
            or num_tokens > self.max_tokens
            or num_blocks > self._max_blocks
        )

    def _adapt(self, seconds: float) -> None:
        """Adapt the token limit to the latency target after a batch that took `seconds`.

        It moves towards the tokens that would have taken the target, from 0.5 to 2 times that batch's tokens.
        """
        target = self._policy.latency_target_seconds
        if target is None:
            return
        ratio = target / seconds if seconds > 0 else 2.0
        fitting = int(self._open_tokens * min(max(ratio, 0.5), 2.0))
        # A batch within the target never lowers the limit.
        limit = fitting if ratio < 1 else max(self.max_tokens, fitting)
        self.max_tokens = min(max(1, limit), self._most_tokens)
