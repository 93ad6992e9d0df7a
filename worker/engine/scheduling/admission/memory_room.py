"""Predicts output lengths, and whether memory will hold one more Sequence beside the running ones."""

from collections.abc import Hashable
from collections.abc import Sequence as Items

from worker.engine.scheduling.admission.memory_forecast import MemoryForecast
from worker.engine.scheduling.admission.output_lengths import OutputLengths
from worker.engine.scheduling.admission.policy import WATERMARK
from worker.engine.scheduling.block_pool import BlockPool
from worker.engine.sequences.sequence import Sequence

STEP_TOKENS = 64  # the worth of a Step in tokens, however few run: docs/decisions/0008


class MemoryRoom:
    """Memory forecast and learned output lengths, shared by all queues of an engine.

    A Sequence must find room until its end, or for as many Steps as pay for a preemption. Beside n others,
    each Step it runs in saves 1/n of a later Step, worth STEP_TOKENS / n tokens; a preemption costs all its
    tokens, which are computed again. So while few Sequences run, one may start that will run short of Blocks
    later; while many run, none may.
    """

    def __init__(self, pool: BlockPool, *, block_size: int, max_model_len: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._max_used = pool.num_blocks - int(WATERMARK * pool.num_blocks)
        self._lengths = OutputLengths()
        self._forecast: MemoryForecast | None = None  # of this Step and its running Sequences

    def forget_forecast(self) -> None:
        """Drop the forecast, because a Step begins or a Sequence has stopped."""
        self._forecast = None

    def has(self, sequence: Sequence, num_needed: int, running: Items[Sequence]) -> bool:
        """Return whether the Blocks are free now, and enough will be as this and running Sequences grow.

        If so, the forecast counts the Sequence as running from now on.
        """
        forecast = self._running_forecast(running)
        num_free = self._pool.num_free_blocks
        if running and num_free - num_needed < self._pool.num_blocks - self._max_used:
            return False
        steps = self._num_steps_left(sequence)
        entry = (steps, -len(sequence.token_ids) % self._block_size, num_needed)
        forecast.add(*entry, num_taken=num_needed)
        if not running or forecast.peak(self._horizon(sequence, steps, len(running))) <= self._max_used:
            return True
        forecast.remove(*entry, num_taken=num_needed)
        return False

    def learn(self, sequence: Sequence, *, is_cut: bool) -> None:
        """Learn the job's output length."""
        self._lengths.learn(sequence.job, sequence.num_output_tokens, is_cut=is_cut)

    def is_known(self, job: Hashable) -> bool:
        """Return whether an output of the job has ended."""
        return self._lengths.is_known(job)

    def expected(self, sequence: Sequence) -> int:
        """Return the expected final length of a Sequence's output, in tokens."""
        limit = self.limit(sequence)
        if not sequence.stop_token_ids and not sequence.params.stop:
            return limit  # nothing else ends it
        return self._lengths.expect(sequence.job, sequence.num_output_tokens, limit)

    def limit(self, sequence: Sequence) -> int:
        """Return the longest possible output of a Sequence, in tokens."""
        return min(sequence.params.max_tokens, self._max_model_len - sequence.num_prompt_tokens)

    def _num_steps_left(self, sequence: Sequence) -> int:
        return max(1, self.expected(sequence) - sequence.num_output_tokens)

    def _horizon(self, sequence: Sequence, num_steps: int, num_running: int) -> int:
        """Return for how many Steps a Sequence must find room, so that they pay for a preemption."""
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
