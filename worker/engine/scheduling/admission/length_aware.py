"""Longest expected output first, prefixes together, and only what memory will hold for as long as pays."""

import heapq
from collections.abc import Sequence as Items

from worker.engine.scheduling.admission.memory_room import MemoryRoom
from worker.engine.sequences.sequence import Sequence, SequenceState

AGING_STEPS = 256  # within a level, Sequences that arrive within so many Steps are one age
AHEAD = 64  # the level, above that of any length, of preempted Sequences and of readings
MAX_MOVES = 64  # a Step
PATIENCE_STEPS = 64  # for so long others may pass one that finds no room

_Item = tuple[int, list[bytes], int, int, Sequence]  # age, digests of the prompt's Blocks, Step, arrival


class LengthAware:
    """Levels of expected output, each twice the one below; the longest goes first, so that none ends alone.

    Within a level the digests decide, so that Sequences with a common prefix follow each other, however
    many Blocks they share. A Step of waiting counts as much as a token of output: nobody is passed by what
    arrives more than a longest output later. Preempted Sequences come before all others, and with
    them readings, which the batch former held back already and which grow no more.

    When the first in order finds no room, those of other levels may pass it, for PATIENCE_STEPS; then nothing
    passes until it has run.
    """

    def __init__(self, room: MemoryRoom) -> None:
        self._room = room
        self._levels: dict[int, list[_Item]] = {}  # heaps, by the bits of the expected length
        self._num_steps = 0
        # Of this Step only.
        self._popped: tuple[int, _Item] | None = None
        self._put_back: list[tuple[int, _Item]] = []
        self._refused: set[int] = set()  # levels
        self._num_moves = 0
        self._is_closed = False
        # One that found no room, and the Step since when: no other counts until it has run.
        self._passed: tuple[Sequence, int] | None = None

    def add(self, sequence: Sequence) -> None:
        """Queue a Sequence by what is expected of it now; what is learned later moves it at its turn."""
        if sequence.max_computed_tokens or not sequence.is_generating:
            self._push(AHEAD, (0, [], 0, sequence.arrival, sequence))
        else:
            now = self._num_steps
            item = (now // AGING_STEPS, sequence.block_hashes, now, sequence.arrival, sequence)
            self._push(self._level(sequence), item)

    def start_step(self) -> None:
        """Begin a Step."""
        self._num_steps += 1
        while self._put_back:
            self._push(*self._put_back.pop())
        self._refused.clear()
        self._num_moves = 0
        self._room.forget_forecast()
        self._is_closed = False

    def pop(self) -> Sequence | None:
        """Take out the first of the level that leads, leaving out levels refused in this Step."""
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
        """Return what was popped last; after a refusal its level rests for this Step."""
        assert self._popped is not None  # noqa: S101
        self._put_back.append(self._popped)
        if not is_refused:
            return
        self._refused.add(self._popped[0])
        if self._passed is None or self._passed[0].state is not SequenceState.WAITING:
            self._passed = sequence, self._num_steps
        self._is_closed = self._num_steps - self._passed[1] > PATIENCE_STEPS

    def has_room(self, sequence: Sequence, num_needed: int, running: Items[Sequence]) -> bool:
        """Whether the Blocks are free, and all will be that this and the running Sequences grow into."""
        has_room = self._room.has(sequence, num_needed, running)
        if has_room and self._passed is not None and self._passed[0] is sequence:
            self._passed = None
        return has_room

    def look_again(self) -> None:
        """Forecast anew what those that run will need."""
        self._room.forget_forecast()

    def learn(self, sequence: Sequence, *, is_cut: bool) -> None:
        """Teach the job's output length."""
        self._room.learn(sequence, is_cut=is_cut)

    def _push(self, level: int, item: _Item) -> None:
        heapq.heappush(self._levels.setdefault(level, []), item)

    def _rank(self, level: int) -> int:
        return self._levels[level][0][2] - (1 << (level - 1))

    def _level(self, sequence: Sequence) -> int:
        expected = self._room.expected(sequence)
        if not self._room.is_known(sequence.job):
            # A job nobody knows starts early, and is known the sooner.
            expected = self._room.limit(sequence)
        return max(1, expected - sequence.num_output_tokens).bit_length()
