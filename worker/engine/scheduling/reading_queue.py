"""Takes readings (requests that generate nothing) through a batch and its Steps to an outcome."""

import time
from collections.abc import Callable, Hashable, Iterator

from worker.engine.requests.config import EngineConfig
from worker.engine.requests.errors import InvalidRequestError
from worker.engine.requests.generation import Reading, ReadingRequest
from worker.engine.requests.stats import ModelInfo
from worker.engine.scheduling.batch_former import BatchFormer, BatchItem
from worker.engine.scheduling.plan import StepPlan
from worker.engine.scheduling.scheduler import Scheduler
from worker.engine.sequences.open_readings import OpenReading, empty_outcome, open_reading
from worker.engine.text.encoding import encode_requests
from worker.engine.text.tokenizer import Tokenizer

STEPS_IN_BATCH = 4  # Steps that a batch fills by default; the last one may be half empty


class ReadingQueue:
    """Holds readings back until the BatchFormer releases them to the Scheduler.

    There they are Sequences beside those that generate, in order of arrival. Each ends with the Step that
    computes its last token.
    """

    def __init__(
        self,
        config: EngineConfig,
        info: ModelInfo,
        tokenizer: Tokenizer,
        scheduler: Scheduler,
        arrivals: Iterator[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._info = info
        self._tokenizer = tokenizer
        self._scheduler = scheduler
        self._arrivals = arrivals
        self._former = BatchFormer(
            config.batch_policy,
            max_tokens=STEPS_IN_BATCH * config.max_tokens_per_step,
            num_blocks=info.num_blocks,
            clock=clock,
        )
        self._readings: dict[Hashable, OpenReading] = {}
        self._num_unread: dict[Hashable, int] = {}  # Sequences of a reading that have not ended
        self._ended: list[tuple[StepPlan, OpenReading]] = []  # by Steps that are not charged yet
        self._outcomes: list[Reading] = []

    def __bool__(self) -> bool:
        return bool(self._readings or self._ended or self._outcomes)

    def __contains__(self, request_id: Hashable) -> bool:
        return request_id in self._readings

    @property
    def num_queued(self) -> int:
        """Number of readings that are in no batch yet."""
        return len(self._former)

    @property
    def wait_seconds(self) -> float | None:
        """Seconds until a Step has work for readings; None: not before one is added."""
        if self._ended or self._outcomes or len(self._readings) > len(self._former):
            return 0.0
        return self._former.wait_seconds

    def add(self, request: ReadingRequest) -> None:
        """Queue a reading; one that cannot run ends in the next Step with an error."""
        try:
            reading = open_reading(encode_requests([request], self._tokenizer)[0], self._info, self._arrivals)
        except InvalidRequestError as error:
            self._outcomes.append(empty_outcome(request, error=error))
            return
        self._readings[request.id] = reading
        self._num_unread[request.id] = len(reading.sequences)
        self._former.add(self._item(reading))

    def cancel(self, request_id: Hashable) -> None:
        """End a reading without a result; the next Step returns its outcome. Ignores unknown ids."""
        reading = self._readings.get(request_id)
        if reading is None:
            return
        if not self._former.remove(request_id):
            for sequence in reading.sequences:
                self._scheduler.finish(sequence)
        self._forget(request_id)
        self._outcomes.append(
            empty_outcome(
                reading.request,
                num_prompt_tokens=reading.num_prompt_tokens,
                is_cancelled=True,
                sequences=reading.sequences,
            )
        )

    def release(self) -> None:
        """Give the Scheduler the next batch, if one is due."""
        for item in self._former.form():
            for sequence in self._readings[item.key].sequences:
                self._scheduler.add(sequence)

    def end(self, plan: StepPlan) -> None:
        """End the readings that this Step, whose rows were read, has completed."""
        if not self._readings:
            return
        for entry in plan.entries:
            sequence = entry.sequence
            if sequence.request_id in self._readings and not sequence.num_uncomputed_tokens:
                self._scheduler.finish(sequence)
                self._num_unread[sequence.request_id] -= 1
                if not self._num_unread[sequence.request_id]:
                    self._ended.append((plan, self._readings[sequence.request_id]))
                    self._forget(sequence.request_id)

    def charged(self, plan: StepPlan) -> None:
        """Make the outcomes of readings that this Step has ended: their share of its time is known now."""
        self._outcomes += [reading.outcome() for ended_by, reading in self._ended if ended_by is plan]
        self._ended = [one for one in self._ended if one[0] is not plan]

    def collect(self) -> tuple[Reading, ...]:
        """Return the outcomes since the last call."""
        outcomes, self._outcomes = self._outcomes, []
        return tuple(outcomes)

    def _forget(self, request_id: Hashable) -> None:
        del self._readings[request_id], self._num_unread[request_id]
        self._former.finish(request_id)

    def _item(self, reading: OpenReading) -> BatchItem:
        """Return the tokens and Blocks that a reading needs; its Sequences' shared prompt counts once."""
        lengths = [len(sequence.token_ids) for sequence in reading.sequences]
        block_size = self._info.block_size
        is_caching = self._scheduler.block_pool.is_caching
        shared_blocks = (reading.num_prompt_tokens - 1) // block_size if is_caching else 0
        again = shared_blocks * (len(lengths) - 1)
        return BatchItem(
            reading.request.id,
            num_tokens=sum(lengths) - again * block_size,
            num_blocks=sum(-(-length // block_size) for length in lengths) - again,
            priority=reading.request.priority,
        )
