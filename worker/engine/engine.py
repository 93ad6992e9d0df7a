"""Runs all requests of one device together, Step by Step. Only one thread at a time may use an Engine."""

import itertools
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from threading import Condition

from worker.engine.choosing.chosen_tokens import Chosen
from worker.engine.models.checkpoint import read_eos_token_ids
from worker.engine.requests.config import EngineConfig
from worker.engine.requests.errors import OutOfMemoryError
from worker.engine.requests.generation import Completion, EngineRequest, GenerationRequest
from worker.engine.requests.stats import BlockUse, EngineStats, ModelInfo
from worker.engine.running.draft_model import DraftModel
from worker.engine.running.model_runner import ModelRunner
from worker.engine.running.step_pipeline import StepPipeline
from worker.engine.scheduling.admission import make_admission
from worker.engine.scheduling.batch_gate import make_gate
from worker.engine.scheduling.block_pool import BlockPool
from worker.engine.scheduling.generations import Generations
from worker.engine.scheduling.latency_target import LatencyTarget
from worker.engine.scheduling.plan import StepOutput, StepPlan
from worker.engine.scheduling.prefix_cache import PrefixCache
from worker.engine.scheduling.reading_queue import ReadingQueue
from worker.engine.scheduling.scheduler import Scheduler
from worker.engine.scheduling.step_meter import StepMeter
from worker.engine.speculation.lookup import LookupProposer
from worker.engine.speculation.proposer import Proposer
from worker.engine.speculation.speculation import Speculation
from worker.engine.speculation.waiting import Waiting
from worker.engine.text.grammar import GrammarCompiler
from worker.engine.text.tokenizer import Tokenizer
from worker.values.outcomes import FinishReason
from worker.values.step_costs import StepCosts


@contextmanager
def _outside(guard: Condition) -> Iterator[None]:
    """Let other threads have the guard meanwhile."""
    guard.notify_all()
    guard.release()
    try:
        yield
    finally:
        guard.acquire()


class Engine:
    """Runs requests with continuous batching over one model on one device.

        engine = Engine(EngineConfig(model=path))
        engine.add(GenerationRequest("a", "Once upon a time"))
        while engine.has_unfinished:
            output = engine.step()

    The thread that calls it must build it; on a CPU, others may join it (`step`). Raises ConfigError or
    CheckpointError while it loads. After that, a request that cannot run gets an outcome with an error, and
    an exception from `step` means that the engine is broken.
    """

    def __init__(self, config: EngineConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self.tokenizer = Tokenizer(config.model)
        self.stats = EngineStats()
        eos_token_ids = read_eos_token_ids(config.model)
        self._runner = ModelRunner(config)
        info = self.model_info
        self.grammars = GrammarCompiler(self.tokenizer, info.vocab_size, eos_token_ids)
        pool = BlockPool(info.num_blocks, PrefixCache() if config.enable_prefix_cache else None)
        self._scheduler = Scheduler(
            pool,
            make_admission(
                config.admission,
                pool,
                block_size=config.block_size,
                max_model_len=info.max_model_len,
                aging_seconds=config.batch_policy.aging_seconds,
                clock=clock,
            ),
            gate=make_gate(
                config.batch_policy,
                max_num_sequences=config.max_num_sequences,
                num_blocks=info.num_blocks,
                block_size=config.block_size,
                clock=clock,
            ),
            block_size=config.block_size,
            max_num_sequences=config.max_num_sequences,
            max_tokens_per_step=config.max_tokens_per_step,
            steps_at_once=self._runner.steps_at_once,
            least_rows_beside=self._runner.least_rows_beside,
            shares_prefixes=config.shares_prefixes,
            stats=self.stats,
        )
        waiting = Waiting() if config.speculates and config.device == "cuda" else None
        self._speculation = Speculation(
            self._proposers(), pool, self.stats, block_size=config.block_size, waiting=waiting
        )
        target = config.latency_target_seconds
        self._target = None if target is None else LatencyTarget(target, self._scheduler.limits)
        counts_work = config.speculates and config.device == "cpu"
        self._meter = StepMeter(self.stats, num_rows=config.max_num_sequences, counts_work=counts_work)
        self._steps = StepPipeline(self._runner, self._meter)
        self.steps_at_once = self._runner.steps_at_once  # one after a Step that ran out of memory
        arrivals = itertools.count(1)
        self._generations = Generations(
            info, self.tokenizer, self.grammars, eos_token_ids, self._scheduler, arrivals
        )
        self._readings = ReadingQueue(config, info, self.tokenizer, self._scheduler, arrivals, clock)

    @property
    def model_info(self) -> ModelInfo:
        """The loaded model and the limits it runs under."""
        return self._runner.model_info

    @property
    def has_unfinished(self) -> bool:
        """True while any request lacks its outcome."""
        return bool(self._generations or self._readings)

    @property
    def wait_seconds(self) -> float | None:
        """Seconds until `step` has work, while requests wait to form a batch; None: not before `add`."""
        is_reading_late = bool(self._generations) and self._steps.running is not None
        if self._generations.has_ended or is_reading_late:
            return 0.0
        waits = (self._readings.wait_seconds, self._scheduler.wait_seconds)
        return min((seconds for seconds in waits if seconds is not None), default=None)

    @property
    def costs(self) -> StepCosts | None:
        """The measured costs of Steps by size; None until enough Steps were measured."""
        return self._meter.costs.fit()

    @property
    def num_running(self) -> int:
        """Number of Sequences that hold Blocks."""
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        """Number of Sequences that hold no Blocks, plus readings that are in no batch yet."""
        return self._scheduler.num_waiting + self._readings.num_queued

    @property
    def step_limits(self) -> tuple[int, int]:
        """The most Sequences and tokens of a Step now; safe to read from any thread."""
        limits = self._scheduler.limits
        return limits.max_num_sequences, limits.max_tokens

    @property
    def block_use(self) -> BlockUse:
        """The use of the KV cache now; safe to read from any thread."""
        pool = self._scheduler.block_pool
        return BlockUse(pool.num_blocks, pool.num_used_blocks, pool.num_cached_blocks)

    def add(self, request: EngineRequest) -> None:
        """Queue a request; one that cannot run completes with an error in the next `step`.

        Raises ValueError when an unfinished request has the same id.
        """
        if request.id in self._generations or request.id in self._readings:
            raise ValueError(f"request {request.id!r} is already running")
        if isinstance(request, GenerationRequest):
            self._generations.add(request)
        else:
            self._readings.add(request)

    def cancel(self, request_id: Hashable) -> None:
        """End a request with the output so far; the next `step` returns its outcome. Ignores unknown ids."""
        self._generations.cancel(request_id)
        self._readings.cancel(request_id)

    def output_so_far(self, request_id: Hashable) -> tuple[int, ...] | None:
        """Return the output tokens of an open request, ready for `GenerationRequest.output_token_ids`.

        Returns None for an unknown request and for one that cannot resume (several choices, or logprobs).
        Safe to call from any thread.
        """
        return self._generations.output_so_far(request_id)

    def started_at(self, request_id: Hashable) -> float | None:
        """Return `time.monotonic()` at the first start of an open generation; None before it."""
        return self._generations.started_at(request_id)

    @property
    def is_running(self) -> bool:
        """True while Steps of other threads run."""
        return self._scheduler.num_steps > 0

    @property
    def can_step(self) -> bool:
        """True if `step` has something to do; False while all that is left is in Steps that run."""
        if self._scheduler.num_steps:
            return self.can_step_beside
        return self.has_unfinished

    @property
    def can_step_beside(self) -> bool:
        """True if a Step runs that another one can run beside."""
        num_steps = self._scheduler.num_steps
        return (
            0 < num_steps < self.steps_at_once
            and self._scheduler.rows_beside(self.steps_at_once) is not None
            and self._scheduler.has_others
        )

    def step(self, guard: Condition | None = None) -> StepOutput:
        """Run one Step over the requests that fit in it; return new tokens and outcomes.

        With nothing to run it only returns outcomes. With a `guard`, which the caller holds, up to
        `steps_at_once` threads may call it at once: it is released while the model runs.
        """
        self._meter.resume()
        self._readings.release()
        plan = self._scheduler.schedule(1 if guard is None else self.steps_at_once)
        if guard is not None and plan.is_beside:
            self._run_beside(plan, guard)
        else:
            self._run_alone(plan)
        return self._collect()

    def _run_alone(self, plan: StepPlan) -> None:
        """Run a Step on all threads, with guesses where they pay."""
        limit, num_waiting = self._scheduler.limits.max_tokens, self._scheduler.num_waiting
        plan = self._speculation.extend(plan, limit, others_wait=num_waiting > 0)
        try:
            late = self._steps.start(plan)
        except OutOfMemoryError as error:
            self._shrink(plan, error)
        else:
            self._take(late)
            self._scheduler.advance(plan)
            self._readings.end(plan)
            self._generations.end_read(plan)
            self._take(self._steps.finish(waits=self._speculation.waits_for(plan)))

    def _run_beside(self, plan: StepPlan, guard: Condition) -> None:
        """Run a Step while other threads may run others.

        If it runs out of memory, Steps run alone from then on.
        """
        if not plan.entries:  # all that could run are in other Steps
            guard.wait()
            return
        self._scheduler.begin(plan)
        self._meter.begin_beside(plan)
        try:
            chosen = self._runner.execute_beside(plan, self.steps_at_once, _outside(guard))
        except OutOfMemoryError:
            self.steps_at_once = 1
            return
        finally:
            seconds = self._meter.end_beside(plan)
            self._scheduler.end(plan)
            guard.notify_all()
        self._scheduler.took(plan, seconds)
        self._scheduler.advance(plan)
        self._readings.end(plan)
        self._generations.end_read(plan)
        self._readings.charged(plan)
        self._generations.take(chosen.sequences, chosen.tokens())
        self._generations.charged(plan)

    def clear_prefix_cache(self) -> None:
        """Forget the contents of cached Blocks; running Sequences keep theirs."""
        self._scheduler.block_pool.clear_cache()

    def check_integrity(self) -> None:
        """Check the Block pool's reference counts against the live Sequences; raises IntegrityError."""
        self._scheduler.check_integrity()

    def _proposers(self) -> list[Proposer]:
        if not self.config.speculates:
            return []
        proposers: list[Proposer] = [LookupProposer()]
        if self._runner.medusa is not None:
            proposers.append(self._runner.medusa)
        if self.config.draft_model is not None:
            device = self._runner.device
            proposers.append(DraftModel(self.config, self.config.draft_model, self.model_info, device))
        return proposers

    def _take(self, chosen: Chosen | None) -> None:
        """Give the tokens of a Step that has ended to the Sequences they were chosen for."""
        if chosen is not None:
            tokens = chosen.tokens()
            plan, seconds = self._meter.ended()
            self._scheduler.took(plan, seconds)
            self._readings.charged(plan)
            worked = self._meter.worked_seconds
            self._speculation.took(plan, seconds if worked is None else worked, chosen.sequences, tokens)
            self._generations.take(chosen.sequences, tokens)
            self._speculation.ended(chosen.sequences)
            self._generations.charged(plan)

    def _shrink(self, plan: StepPlan, error: OutOfMemoryError) -> None:
        """Continue with smaller Steps; a request that does not fit the smallest Step fails alone."""
        self.stats.shrunk_steps += 1
        if plan.num_guesses:
            self._speculation.pause()
            return
        if self._scheduler.shrink(plan):
            return
        sequence = plan.entries[0].sequence
        if sequence.request_id not in self._generations:
            raise error
        self._scheduler.limits.reset()
        self._generations.fail(sequence.request_id, f"the device ran out of memory: {error}")

    def _adapt(self, target: LatencyTarget, completions: Iterable[Completion]) -> None:
        """Move the limits of Steps by the time of generations that ran to their end."""
        now = time.monotonic()
        for one in completions:
            if one.started_at is not None and one.finish_reason in {FinishReason.STOP, FinishReason.LENGTH}:
                target.ended(one.started_at, now, self.num_running)
        self.stats.limit_cuts, self.stats.limit_raises = target.num_cuts, target.num_raises

    def _collect(self) -> StepOutput:
        """Return everything that happened since the last Step."""
        num_new_tokens, completions, deltas = self._generations.collect()
        if self._target is not None:
            self._adapt(self._target, completions)
        output = StepOutput(num_new_tokens, completions, self._readings.collect(), deltas)
        self.stats.decode_tokens += num_new_tokens.total()
        if self.wait_seconds != 0:
            self._meter.rest()
            self._speculation.rest()
            self._runner.rest()
        return output
