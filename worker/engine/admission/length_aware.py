"""Longest expected output first, prefixes together, and only what memory will hold for as long as pays."""

import heapq
from collections.abc import Sequence as Items

from worker.engine.admission.memory_forecast import MemoryForecast
from worker.engine.admission.output_lengths import OutputLengths
from worker.engine.admission.policy import WATERMARK
from worker.engine.block_pool import BlockPool
from worker.engine.sequence import Sequence, SequenceState

AGING_STEPS = 256  # Sequences that arrive within so many Steps are one age
AHEAD = 64  # the level, above that of any length, of preempted Sequences and of readings
MAX_MOVES = 64  # a Step
PATIENCE_STEPS = 64  # for so long others may pass one that finds no room
STEP_TOKENS = 64  # what a Step is worth, however few run: docs/decisions/0008

_Item = tuple[int, list[bytes], int, Sequence]  # age, digests of the prompt's Blocks, arrival


class LengthAware:
    """Levels of expected output, each twice the one below; the longest goes first, so that none ends alone.

    Within a level the digests decide, so that Sequences with a common prefix follow each other, however
    many Blocks they share. A Step of waiting counts as much as a token of output: nobody is passed by what
    arrives more than a longest output later. Preempted Sequences come before all others, and with
    them readings, which the batch former held back already and which grow no more.

    When the first in order finds no room, those of other levels may pass it, for PATIENCE_STEPS; then nothing
    passes until it has run.

    Room is what a Sequence must find to stay until its end, or for as long as pays: beside n others, a Step
    with it saves 1/n of a Step without them, worth STEP_TOKENS / n, and if it is preempted all its tokens are
    computed again. So while few run one may start that will run short of Blocks later, and while many run
    none may.
    """

    def __init__(self, pool: BlockPool, *, block_size: int, max_model_len: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._max_used = pool.num_blocks - int(WATERMARK * pool.num_blocks)
        self._lengths = OutputLengths()
        self._levels: dict[int, list[_Item]] = {}  # heaps, by the bits of the expected length
        self._num_steps = 0
        # Of this Step only.
        self._popped: tuple[int, _Item] | None = None
        self._put_back: list[tuple[int, _Item]] = []
        self._refused: set[int] = set()  # levels
        self._num_moves = 0
        self._forecast: MemoryForecast | None = None
        self._is_closed = False
        # One that found no room, and the Step since when: no other counts until it has run.
        self._passed: tuple[Sequence, int] | None = None

    def add(self, sequence: Sequence) -> None:
        """Queue a Sequence by what is expected of it now; what is learned later moves it at its turn."""
        if sequence.max_computed_tokens or not sequence.is_generating:
            self._push(AHEAD, (0, [], sequence.arrival, sequence))
        else:
            age = self._num_steps // AGING_STEPS
            self._push(self._level(sequence), (age, sequence.block_hashes, sequence.arrival, sequence))

    def start_step(self) -> None:
        """Begin a Step."""
        self._num_steps += 1
        while self._put_back:
            self._push(*self._put_back.pop())
        self._refused.clear()
        self._num_moves = 0
        self._forecast = None
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
        forecast = self._running_forecast(running)
        num_free = self._pool.num_free_blocks
        if running and num_free - num_needed < self._pool.num_blocks - self._max_used:
            return False
        steps = self._num_steps_left(sequence)
        entry = (steps, -len(sequence.token_ids) % self._block_size, num_needed)
        forecast.add(*entry, num_taken=num_needed)
        if not running or forecast.peak(self._horizon(sequence, steps, len(running))) <= self._max_used:
            if self._passed is not None and self._passed[0] is sequence:
                self._passed = None
            return True
        forecast.remove(*entry, num_taken=num_needed)
        return False

    def learn(self, sequence: Sequence, *, is_cut: bool) -> None:
        """Teach the job's output length."""
        self._lengths.learn(sequence.job, sequence.num_output_tokens, is_cut=is_cut)

    def _push(self, level: int, item: _Item) -> None:
        heapq.heappush(self._levels.setdefault(level, []), item)

    def _rank(self, level: int) -> int:
        return self._levels[level][0][0] * AGING_STEPS - (1 << (level - 1))

    def _level(self, sequence: Sequence) -> int:
        expected = self._expected(sequence)
        if not self._lengths.is_known(sequence.job):
            expected = self._limit(sequence)  # a job nobody knows starts early, and is known the sooner
        return max(1, expected - sequence.num_output_tokens).bit_length()

    def _num_steps_left(self, sequence: Sequence) -> int:
        return max(1, self._expected(sequence) - sequence.num_output_tokens)

    def _expected(self, sequence: Sequence) -> int:
        limit = self._limit(sequence)
        if not sequence.stop_token_ids and not sequence.params.stop:
            return limit  # nothing else ends it
        return self._lengths.expect(sequence.job, sequence.num_output_tokens, limit)

    def _limit(self, sequence: Sequence) -> int:
        return min(sequence.params.max_tokens, self._max_model_len - sequence.num_prompt_tokens)

    def _horizon(self, sequence: Sequence, num_steps: int, num_running: int) -> int:
        """Return for how many Steps it must find room, so that they save more than its preemption costs."""
        if num_running >= STEP_TOKENS:
            return num_steps
        return min(num_steps, len(sequence.token_ids) * num_running // (STEP_TOKENS - num_running))

    def _running_forecast(self, running: Items[Sequence]) -> MemoryForecast:
        if self._forecast is None:
            used = self._pool.num_blocks - self._pool.num_free_blocks
            self._forecast = MemoryForecast(self._block_size, used)
            for sequence in running:
                table = sequence.block_table
                spare = len(table) * self._block_size - len(sequence.token_ids)
                self._forecast.add(self._num_steps_left(sequence), spare, self._pool.count_unshared(table))
        return self._forecast
