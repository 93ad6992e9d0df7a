"""Orders the Sequences of one group: by priority, then from the batch with the fewest reserved tokens."""

import time
from collections.abc import Callable, Collection, Hashable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from worker.engine.scheduling.admission.policy import AdmissionPolicy
from worker.engine.sequences.sequence import Sequence


@dataclass(slots=True, eq=False)
class _Batch:
    """The waiting and running Sequences of one batch at one priority."""

    queue: AdmissionPolicy
    priority: int
    num_waiting: int = 0
    reserved: float = 0.0  # tokens that its running Sequences may need, from their start
    running: dict[Sequence, float] = field(default_factory=dict)  # tokens reserved by each
    is_tried: bool = False  # nothing more to try in this Step
    waits_since: float = 0.0  # when a Sequence of it last began to wait first, or started


class OwnOrder:
    """Admission policy of one group: a queue for each batch, and the choice of Sequences that give way.

    With one batch of one priority, only that batch's queue counts. With `aging_seconds`, a batch goes first
    that has waited longest, where a level of priority counts as so many seconds of waiting; then priority
    displaces nothing that runs.
    """

    def __init__(
        self,
        make_queue: Callable[[], AdmissionPolicy],
        aging_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make_queue = make_queue
        self._aging_seconds = aging_seconds
        self._clock = clock
        self._batches: dict[tuple[int, Hashable], _Batch] = {}  # with work, by priority and batch
        self._refused: _Batch | None = None  # in this Step
        self._popped: _Batch | None = None

    def add(self, sequence: Sequence) -> None:
        """Queue a new or preempted Sequence in its batch."""
        batch = self._batch(sequence)
        if not batch.num_waiting:
            batch.waits_since = self._clock()
        batch.num_waiting += 1
        batch.is_tried = False
        batch.queue.add(sequence)

    def start_step(self) -> None:
        """Begin a Step: refused Sequences may be tried again."""
        self._refused = None
        for batch in self._batches.values():
            batch.is_tried = False
            batch.queue.start_step()

    def pop(self) -> Sequence | None:
        """Remove and return the next Sequence to try; after a refusal in this Step, only of that batch."""
        while (batch := self._refused or self._next()) is not None:
            sequence = None if batch.is_tried else batch.queue.pop()
            if sequence is not None:
                self._popped = batch
                return sequence
            batch.is_tried = True
            if batch is self._refused:
                break
        return None

    def put_back(self, sequence: Sequence, *, is_refused: bool) -> None:
        """Queue the Sequence popped last again, not admitted; `is_refused`: it found no room."""
        batch = self._batch(sequence)
        batch.queue.put_back(sequence, is_refused=is_refused)
        if is_refused:
            self._refused = batch

    def has_room(self, sequence: Sequence, num_needed: int, running: Items[Sequence]) -> bool:
        """Return whether a Sequence may take `num_needed` free Blocks beside the running ones."""
        return self._batch(sequence).queue.has_room(sequence, num_needed, running)

    def look_again(self) -> None:
        """Recheck the running Sequences, because one has stopped within this Step."""
        if self._popped is not None:
            self._popped.queue.look_again()

    def learn(self, sequence: Sequence, *, is_cut: bool) -> None:
        """Learn the output length of an ended Sequence; `is_cut`: its limit ended it."""
        self._batch(sequence).queue.learn(sequence, is_cut=is_cut)

    def started(self, sequence: Sequence, num_tokens: float) -> None:
        """Record that a Sequence starts to run, and reserve all tokens it may need."""
        batch = self._batch(sequence)
        batch.waits_since = self._clock()
        batch.running[sequence] = num_tokens
        batch.reserved += num_tokens

    def stopped(self, sequence: Sequence) -> None:
        """Record that a Sequence runs no longer."""
        batch = self._batch(sequence)
        batch.reserved -= batch.running.pop(sequence)
        self._forget_idle(sequence)

    def left_queue(self, sequence: Sequence) -> None:
        """Record that a Sequence waits no longer: it was admitted or has ended."""
        self._batch(sequence).num_waiting -= 1
        self._forget_idle(sequence)

    def running(self) -> Iterator[tuple[Collection[Sequence], bool]]:
        """Yield each batch's running Sequences, and whether none of a higher priority runs in the group."""
        running = [batch for batch in self._batches.values() if batch.running]
        highest = max((batch.priority for batch in running), default=0)
        return ((batch.running.keys(), batch.priority == highest) for batch in running)

    def may_exchange(self) -> bool:
        """Return whether a waiting Sequence may take the place of a running one of the group."""
        first = self._next()
        return first is not None and any(
            batch.running and (batch.priority, first.reserved) < (first.priority, batch.reserved)
            for batch in self._batches.values()
            if batch.priority == first.priority
            or (batch.priority < first.priority and self._aging_seconds is None)
        )

    def gives_way(self, sequence: Sequence, num_tokens: float, running: Items[Sequence]) -> Sequence | None:
        """Return which of the group's `running` gives way to the Sequence popped last; None: it must wait.

        Without aging, a Sequence of a lower priority always gives way. At the same priority, one gives way if
        its batch still has at least as many reserved tokens as the other after the exchange, or if its batch
        runs several and the other none. An exchange is never followed by its reverse.
        """
        own = self._batch(sequence)
        lower = [other for other in running if other.share.priority < own.priority]
        if lower and self._aging_seconds is None:
            return min(lower, key=loss)
        level = [other for other in running if other.share.priority == own.priority]
        others = [other for other in level if self._batch(other) is not own]
        ahead = max(map(self._batch, others), key=lambda batch: batch.reserved, default=None)
        if ahead is None:
            return None
        victim = min((other for other in others if self._batch(other) is ahead), key=loss)
        gap = ahead.reserved - ahead.running[victim] - own.reserved - num_tokens
        has_none = not own.running and len(ahead.running) > 1
        return victim if has_none or (gap >= 0 and ahead.reserved > own.reserved) else None

    def _next(self) -> _Batch | None:
        waiting = [batch for batch in self._batches.values() if batch.num_waiting and not batch.is_tried]
        return min(waiting, key=self._place, default=None)

    def _place(self, batch: _Batch) -> tuple[float, float]:
        """Return the sort key of a waiting batch; the lowest goes first."""
        if self._aging_seconds is None:
            return -batch.priority, batch.reserved
        return batch.waits_since - batch.priority * self._aging_seconds, batch.reserved

    def _batch(self, sequence: Sequence) -> _Batch:
        key = (sequence.share.priority, sequence.share.batch)
        batch = self._batches.get(key)
        if batch is None:
            batch = self._batches[key] = _Batch(self._make_queue(), sequence.share.priority)
        return batch

    def _forget_idle(self, sequence: Sequence) -> None:
        key = (sequence.share.priority, sequence.share.batch)
        batch = self._batches[key]
        if not batch.num_waiting and not batch.running:
            del self._batches[key]


def loss(sequence: Sequence) -> tuple[int, int, int]:
    """Return the cost of a preemption to the group as a sort key: lowest priority first, then least computed.

    On a tie the youngest goes first.
    """
    return sequence.share.priority, sequence.num_computed_tokens, -sequence.arrival
