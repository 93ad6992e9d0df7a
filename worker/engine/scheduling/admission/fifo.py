"""Admits waiting Sequences first in, first out: no later Sequence passes an earlier one."""

import heapq
from collections.abc import Sequence as Items

from worker.engine.scheduling.admission.policy import WATERMARK
from worker.engine.scheduling.block_pool import BlockPool
from worker.engine.sequences.sequence import Sequence, SequenceState


class Fifo:
    """Admission policy in order of arrival.

    It asks only for room for the tokens known now: a growing output may be preempted.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._watermark = int(WATERMARK * pool.num_blocks)
        self._waiting: list[tuple[int, Sequence]] = []  # a heap by arrival
        self._put_back: list[Sequence] = []
        self._is_blocked = False

    def add(self, sequence: Sequence) -> None:
        """Queue a Sequence by its arrival."""
        heapq.heappush(self._waiting, (sequence.arrival, sequence))

    def start_step(self) -> None:
        """Begin a Step: Sequences that were put back may be tried again."""
        while self._put_back:
            self.add(self._put_back.pop())
        self._is_blocked = False

    def pop(self) -> Sequence | None:
        """Remove and return the oldest Sequence, unless one was refused in this Step."""
        while self._waiting and not self._is_blocked:
            _, sequence = heapq.heappop(self._waiting)
            if sequence.state is SequenceState.WAITING:
                return sequence
        return None

    def put_back(self, sequence: Sequence, *, is_refused: bool) -> None:
        """Queue the Sequence popped last again; no other passes a refused one in this Step."""
        self._put_back.append(sequence)
        self._is_blocked |= is_refused

    def has_room(self, sequence: Sequence, num_needed: int, running: Items[Sequence]) -> bool:  # noqa: ARG002
        """Return whether the Blocks are free, leaving the watermark, or one per running Sequence if more."""
        left = self._pool.num_free_blocks - num_needed
        return left >= (max(self._watermark, len(running)) if running else 0)

    def look_again(self) -> None:
        """Do nothing: `has_room` looks at the running Sequences each time."""

    def learn(self, sequence: Sequence, *, is_cut: bool) -> None:
        """Do nothing: output lengths do not count here."""
