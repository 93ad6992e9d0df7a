"""How long outputs will become, and whether memory will hold one more beside those that run."""

from collections.abc import Hashable
from collections.abc import Sequence as Items

from worker.engine.scheduling.admission.memory_forecast import MemoryForecast
from worker.engine.scheduling.admission.output_lengths import OutputLengths
from worker.engine.scheduling.admission.policy import WATERMARK
from worker.engine.scheduling.block_pool import BlockPool
from worker.engine.sequences.sequence import Sequence

STEP_TOKENS = 64  # what a Step is worth, however few run: docs/decisions/0008


class MemoryRoom:
    """What all queues of an engine share: one memory, and what ended outputs have taught.

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
        self._forecast: MemoryForecast | None = None  # of this Step, and what runs in it

    def forget_forecast(self) -> None:
        """Look at what runs anew: a Step begins, or something has left."""
        self._forecast = None

    def has(self, sequence: Sequence, num_needed: int, running: Items[Sequence]) -> bool:
        """Whether the Blocks are free, and all will be that this and the running Sequences grow into.

        If so the Sequence counts as running from now on.
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
        """Teach the job's output length."""
        self._lengths.learn(sequence.job, sequence.num_output_tokens, is_cut=is_cut)

    def is_known(self, job: Hashable) -> bool:
        """Whether an output of the job has ended."""
        return self._lengths.is_known(job)

    def expected(self, sequence: Sequence) -> int:
        """Return how long its output is expected to become."""
        limit = self.limit(sequence)
        if not sequence.stop_token_ids and not sequence.params.stop:
            return limit  # nothing else ends it
        return self._lengths.expect(sequence.job, sequence.num_output_tokens, limit)

    def limit(self, sequence: Sequence) -> int:
        """Return how long its output may become."""
        return min(sequence.params.max_tokens, self._max_model_len - sequence.num_prompt_tokens)

    def _num_steps_left(self, sequence: Sequence) -> int:
        return max(1, self.expected(sequence) - sequence.num_output_tokens)

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
