"""Admits the longest expected outputs first, common prefixes together, and only where memory will suffice."""

import heapq
from collections.abc import Sequence as Items

from worker.engine.scheduling.admission.memory_room import MemoryRoom
from worker.engine.sequences.sequence import Sequence, SequenceState

AGING_STEPS = 256  # within a level, Sequences that arrive within this many Steps have one age
AHEAD = 64  # the level of preempted Sequences and readings, above that of any length
MAX_MOVES = 64  # moves between levels in a Step
PATIENCE_STEPS = 64  # Steps for which others may pass a Sequence that finds no room

_Item = tuple[int, list[bytes], int, int, Sequence]  # age, digests of the prompt's Blocks, Step, arrival


class LengthAware:
    """Admission policy by levels of expected output length, each level twice as long as the one below.

    The longest goes first, so that no long output runs alone at the end. Within a level and age, Sequences
    are ordered by the digests of their Blocks, so that those with a common prefix follow each other, however
    many Blocks they share. A Step of waiting counts as much as a token of output: no Sequence is passed by
    one that arrives more than the longest output later. Preempted Sequences go before all others, and so do
    readings, which the BatchFormer held back already and which do not grow.

    When the first in order finds no room, Sequences of other levels may pass it for PATIENCE_STEPS; then none
    passes until it has run.
    """

    def __init__(self, room: MemoryRoom) -> None:
        self._room = room
        self._levels: dict[int, list[_Item]] = {}  # heaps, by the bits of the expected length
        self._num_steps = 0
        # State of the current Step only.
        self._popped: tuple[int, _Item] | None = None
        self._put_back: list[tuple[int, _Item]] = []
        self._refused: set[int] = set()  # levels
        self._num_moves = 0
        self._is_closed = False
        # The first Sequence that found no room, and in which Step; replaced only after it has left the queue.
        self._passed: tuple[Sequence, int] | None = None

    def add(self, sequence: Sequence) -> None:
        """Queue a Sequence by its expected length now; `pop` moves it if its level has changed since."""
        if sequence.max_computed_tokens or not sequence.is_generating:
            self._push(AHEAD, (0, [], 0, sequence.arrival, sequence))
        else:
            now = self._num_steps
            item = (now // AGING_STEPS, sequence.block_hashes, now, sequence.arrival, sequence)
            self._push(self._level(sequence), item)

    def start_step(self) -> None:
        """Begin a Step: Sequences that were put back may be tried again."""
        self._num_steps += 1
        while self._put_back:
            self._push(*self._put_back.pop())
        self._refused.clear()
        self._num_moves = 0
        self._room.forget_forecast()
        self._is_closed = False

    def pop(self) -> Sequence | None:
        """Remove and return the first Sequence of the leading level, skipping levels refused in this Step."""
        while not self._is_closed:
            open_levels = [
                level for level, heap in self._levels.items() if heap and level not in self._refused
            ]
            if not open_levels:
                break
            level = min(open_levels, key=self._rank)
            item = heapq.heappop(self._levels[level])
            sequence = item[-1]
            if sequence.state is not SequenceState.WAITING:
                continue
            if level != AHEAD and self._num_moves < MAX_MOVES:
                now = self._level(sequence)
                if now != level:
                    self._num_moves += 1
                    self._push(now, item)
                    continue
            self._popped = level, item
            return sequence
        return None

    def put_back(self, sequence: Sequence, *, is_refused: bool) -> None:
        """Queue the Sequence popped last again; after a refusal its level is skipped for this Step."""
        assert self._popped is not None  # noqa: S101
        self._put_back.append(self._popped)
        if not is_refused:
            return
        self._refused.add(self._popped[0])
        if self._passed is None or self._passed[0].state is not SequenceState.WAITING:
            self._passed = sequence, self._num_steps
        self._is_closed = self._num_steps - self._passed[1] > PATIENCE_STEPS

    def has_room(self, sequence: Sequence, num_needed: int, running: Items[Sequence]) -> bool:
        """Return whether the Blocks are free now, and enough will be as this and running Sequences grow."""
        has_room = self._room.has(sequence, num_needed, running)
        if has_room and self._passed is not None and self._passed[0] is sequence:
            self._passed = None
        return has_room

    def look_again(self) -> None:
        """Forecast again what the running Sequences will need."""
        self._room.forget_forecast()

    def learn(self, sequence: Sequence, *, is_cut: bool) -> None:
        """Learn the job's output length."""
        self._room.learn(sequence, is_cut=is_cut)

    def _push(self, level: int, item: _Item) -> None:
        heapq.heappush(self._levels.setdefault(level, []), item)

    def _rank(self, level: int) -> int:
        return self._levels[level][0][2] - (1 << (level - 1))

    def _level(self, sequence: Sequence) -> int:
        expected = self._room.expected(sequence)
        if not self._room.is_known(sequence.job):
            # An unknown job counts as long, so it starts early and is known sooner.
            expected = self._room.limit(sequence)
        return max(1, expected - sequence.num_output_tokens).bit_length()
