"""The engine: takes requests and advances all of them together, a Step at a time. One thread's property."""

import itertools
import secrets
import time
from collections import Counter
from collections.abc import Callable, Hashable
from collections.abc import Sequence as Tokens

from worker.engine.choosing.chosen_tokens import Chosen
from worker.engine.models.checkpoint import read_eos_token_ids
from worker.engine.requests.config import EngineConfig
from worker.engine.requests.errors import InvalidRequestError, OutOfMemoryError, TooLongError
from worker.engine.requests.generation import (
    Choice,
    Completion,
    Delta,
    FinishReason,
    GenerationRequest,
    Request,
)
from worker.engine.requests.stats import EngineStats, ModelInfo
from worker.engine.running.model_runner import ModelRunner
from worker.engine.scheduling.admission import make_admission
from worker.engine.scheduling.block_pool import BlockPool
from worker.engine.scheduling.plan import StepOutput, StepPlan
from worker.engine.scheduling.prefix_cache import PrefixCache
from worker.engine.scheduling.reading_queue import ReadingQueue
from worker.engine.scheduling.scheduler import Scheduler
from worker.engine.scheduling.step_costs import Costs
from worker.engine.scheduling.step_meter import StepMeter
from worker.engine.sequences.open_request import OpenRequest, choice_seed
from worker.engine.sequences.readout import PromptReadout
from worker.engine.sequences.sequence import Sequence, SequenceState
from worker.engine.text.grammar import GrammarCompiler
from worker.engine.text.output_stream import OutputStream
from worker.engine.text.resuming import resume
from worker.engine.text.stopping import StopChecker, finish_reason, output_text
from worker.engine.text.tokenizer import Tokenizer


class Engine:
    """Continuous batching over one model on one device.

    Built on the thread that will call it. Raises ConfigError and CheckpointError while it loads; after that
    a request that cannot run is that request's outcome, and an exception out of `step` means the engine is
    broken.
    """

    def __init__(self, config: EngineConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self.tokenizer = Tokenizer(config.model)
        self.stats = EngineStats()
        self._eos_token_ids = read_eos_token_ids(config.model)
        self._runner = ModelRunner(config)
        self.grammars = GrammarCompiler(self.tokenizer, self.model_info.vocab_size, self._eos_token_ids)
        pool = BlockPool(self.model_info.num_blocks, PrefixCache() if config.enable_prefix_cache else None)
        self._scheduler = Scheduler(
            pool,
            make_admission(
                config.admission,
                pool,
                block_size=config.block_size,
                max_model_len=self.model_info.max_model_len,
            ),
            block_size=config.block_size,
            max_num_sequences=config.max_num_sequences,
            max_tokens_per_step=config.max_tokens_per_step,
            shares_prefixes=config.shares_prefixes,
            stats=self.stats,
        )
        self._meter = StepMeter(self.stats, num_rows=config.max_num_sequences)
        self._open: dict[Hashable, OpenRequest] = {}
        self._stop_checkers: dict[Sequence, StopChecker] = {}
        self._running: Chosen | None = None  # what the last Step chooses, while only the device knows
        self._streams: dict[Sequence, OutputStream] = {}
        self._deltas: list[Delta] = []  # since the last Step
        self._completions: list[Completion] = []  # of requests that ended outside a Step
        self._arrivals = itertools.count(1)
        self._readings = ReadingQueue(
            config, self.model_info, self.tokenizer, self._scheduler, self._arrivals, clock
        )

    @property
    def model_info(self) -> ModelInfo:
        """What was loaded and the limits it runs under."""
        return self._runner.model_info

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is without its outcome."""
        return bool(self._open or self._completions or self._readings)

    @property
    def wait_seconds(self) -> float | None:
        """How long a `step` would bring nothing, while readings wait for others; None: until `add`."""
        return 0.0 if self._open or self._completions else self._readings.wait_seconds

    @property
    def costs(self) -> Costs | None:
        """What Steps cost by their size; None before enough of them were measured."""
        return self._meter.costs.fit()

    @property
    def num_running(self) -> int:
        """Sequences that hold Blocks."""
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        """Sequences that hold none, and readings that no batch has taken yet."""
        return self._scheduler.num_waiting + self._readings.num_queued

    def add(self, request: Request) -> None:
        """Queue a request; one that cannot run completes in the next `step` with an error.

        Raises ValueError when the id is that of a request still unfinished.
        """
        if request.id in self._open or request.id in self._readings:
            raise ValueError(f"request {request.id!r} is already running")
        if not isinstance(request, GenerationRequest):
            self._readings.add(request)
            return
        try:
            opened = OpenRequest(request.id, self._sequences(request))
        except InvalidRequestError as error:
            is_too_long = isinstance(error, TooLongError)
            self._completions.append(Completion.failed(request.id, str(error), is_too_long=is_too_long))
            return
        self._open[request.id] = opened
        if request.is_streamed:
            for index, sequence in enumerate(opened.sequences):
                self._streams[sequence] = OutputStream(sequence, index, self.tokenizer)
        for sequence in opened.sequences:
            self._scheduler.add(sequence)

    def cancel(self, request_id: Hashable) -> None:
        """End a request with what it has; the next `step` brings its outcome. Unknown ids are ignored."""
        self._readings.cancel(request_id)
        opened = self._open.get(request_id)
        if opened is not None:
            for sequence in opened.unfinished:
                self._end(sequence, FinishReason.CANCELLED)
            self._completions.append(self._close(opened, is_cancelled=True))

    def output_so_far(self, request_id: Hashable) -> tuple[int, ...] | None:
        """Return an open request's tokens as `GenerationRequest.output_token_ids` takes them, else None.

        May be called from any thread: it reads one list, once, that only grows.
        """
        opened = self._open.get(request_id)
        if opened is None or len(opened.sequences) > 1 or opened.sequences[0].needs_logprobs:
            return None
        sequence = opened.sequences[0]
        return tuple(sequence.token_ids[sequence.num_prompt_tokens :])

    def step(self) -> StepOutput:
        """Advance every request that the next Step has room for; without any, only hand out outcomes.

        On a GPU it starts a Step before it looks at what the one before has chosen, which is still on the
        device then. What ends with that is seen a Step late, and what the new one adds to it is dropped.
        """
        self._meter.resume()
        self._readings.release()
        plan = self._scheduler.schedule()
        self._meter.begin()
        try:
            started = self._runner.execute(plan) if plan.entries else None
        except OutOfMemoryError as error:
            return self._shrink(plan, error)
        if started is not None:
            self._meter.started(plan, self._runner.num_padding)
        before, self._running = self._running, started
        new_tokens: Counter[Hashable] = Counter()
        ended, self._completions = self._completions, []
        if before is not None:
            ended += self._take(before, new_tokens)
        self._scheduler.advance(plan)
        if self._running is not None:
            if self._running.is_here:
                ended += self._take(self._running, new_tokens)
                self._running = None
            else:
                for sequence in self._running.sequences:
                    sequence.num_pending_tokens = 1
                self._meter.pause()
        deltas, self._deltas = self._deltas, []
        self.stats.steps += bool(plan.entries)
        self.stats.decode_tokens += new_tokens.total()
        if self.wait_seconds != 0:
            self._meter.rest()
        return StepOutput(new_tokens, tuple(ended), self._readings.collect(plan), tuple(deltas))

    def clear_prefix_cache(self) -> None:
        """Forget what cached Blocks hold; what runs is not disturbed."""
        self._scheduler.block_pool.clear_cache()

    def check_integrity(self) -> None:
        """Compare the Block pool's books with the live Sequences; raises IntegrityError."""
        self._scheduler.check_integrity()

    def _sequences(self, request: GenerationRequest) -> tuple[Sequence, ...]:
        if isinstance(request.prompt, str):
            texts = [request.prompt]
            token_ids = self.tokenizer.encode_batch(texts, add_special_tokens=request.add_special_tokens)[0]
        else:
            token_ids = list(request.prompt)
        if not token_ids:
            raise InvalidRequestError("the prompt is empty")
        info = self.model_info
        if len(token_ids) >= info.max_model_len:
            raise TooLongError(
                f"the prompt has {len(token_ids)} tokens; the longest this model takes is "
                f"{info.max_model_len - 1}, which leaves room for one more"
            )
        if min(token_ids) < 0 or max(token_ids) >= info.vocab_size:
            raise InvalidRequestError(f"the prompt has a token id outside 0..{info.vocab_size - 1}")
        params = request.params
        if params.must_fit and len(token_ids) + params.max_tokens > info.max_model_len:
            raise TooLongError(
                f"the prompt has {len(token_ids)} tokens and max_tokens is {params.max_tokens}; "
                f"the context of this model is {info.max_model_len}"
            )
        named = [*(token for token, _ in params.logit_bias), *params.stop_token_ids]
        if named and (min(named) < 0 or max(named) >= info.vocab_size):
            raise InvalidRequestError(
                f"logit_bias or stop_token_ids has an id outside 0..{info.vocab_size - 1}"
            )
        seed = (secrets.randbits(64) if params.seed is None else params.seed) % 2**64
        stop_token_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos or params.grammar is not None:
            stop_token_ids |= self._eos_token_ids
        readout = None
        if params.prompt_logprobs is not None:
            readout = PromptReadout(token_ids[1:], params.prompt_logprobs)
        sequences = []
        for index in range(params.num_choices):
            sequence = Sequence(
                request_id=request.id,
                arrival=next(self._arrivals),
                token_ids=list(token_ids),
                num_prompt_tokens=len(token_ids),
                params=params,
                seed=choice_seed(seed, index),
                stop_token_ids=stop_token_ids,
                max_length=min(len(token_ids) + params.max_tokens, info.max_model_len),
                readout=readout if index == 0 else None,
                job=request.job,
                share=request.share,
                is_shareable=request.is_cached,
                is_urgent=request.priority > 0,
                is_alone=request.is_alone,
                matcher=None if params.grammar is None else self.grammars.matcher(params.grammar),
            )
            self._start(sequence, request.output_token_ids)
            sequences.append(sequence)
        return tuple(sequences)

    def _start(self, sequence: Sequence, output_token_ids: Tokens[int]) -> None:
        """Bring a new Sequence to where an earlier run of it was after these tokens."""
        params = sequence.params
        stop_checker = None
        if params.stop:
            stop_checker = StopChecker(params.stop, params.min_tokens, self.tokenizer)
        resume(sequence, output_token_ids, stop_checker, self.model_info)
        if stop_checker is not None:
            self._stop_checkers[sequence] = stop_checker

    def _shrink(self, plan: StepPlan, error: OutOfMemoryError) -> StepOutput:
        """Go on with smaller Steps; a request that does not fit in the smallest fails alone."""
        self.stats.shrunk_steps += 1
        if self._running is not None:
            self._meter.pause()
        if self._scheduler.shrink(plan):
            return StepOutput({}, ())
        sequence = plan.entries[0].sequence
        if not sequence.is_generating:
            raise error
        self._scheduler.limits.reset()
        failed = self._fail(self._open[sequence.request_id], f"the device ran out of memory: {error}")
        return StepOutput({}, (failed,))

    def _take(self, chosen: Chosen, new_tokens: Counter[Hashable]) -> list[Completion]:
        """Give Sequences what a Step chose for them, count it, and return what ended with it."""
        ended = []
        token_ids = chosen.tokens()
        self._scheduler.took(*self._meter.ended())
        for sequence, token_id in zip(chosen.sequences, token_ids, strict=True):
            sequence.num_pending_tokens = 0
            # It may be over: by the token before, `cancel`, or another choice of its request that failed.
            if sequence.state is SequenceState.FINISHED:
                continue
            new_tokens[sequence.request_id] += token_id is not None
            completion = self._append(sequence, token_id)
            if completion is not None:
                ended.append(completion)
        return ended

    def _append(self, sequence: Sequence, token_id: int | None) -> Completion | None:
        """Add a chosen token, and end the Sequence if it was the last one."""
        if token_id is None:
            # What its Blocks hold is no better than its logits: nobody may share them.
            self.clear_prefix_cache()
            return self._fail(self._open[sequence.request_id], "the model's logits are not finite numbers")
        sequence.token_ids.append(token_id)
        reason = finish_reason(sequence)
        if sequence.matcher is not None:
            try:
                if sequence.matcher.push(token_id):
                    reason = FinishReason.STOP
            except InvalidRequestError as error:
                return self._fail(self._open[sequence.request_id], str(error))
        if reason is None and sequence.params.stop and self._stop_checkers[sequence].push(token_id):
            reason = FinishReason.STOP
        if reason is None:
            stream = self._streams.get(sequence)
            if stream is not None and (delta := stream.push(token_id)) is not None:
                self._deltas.append(delta)
            return None
        opened = self._open[sequence.request_id]
        self._end(sequence, reason)
        return None if opened.unfinished else self._close(opened)

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        """Take a Sequence out and note its choice."""
        self._scheduler.finish(sequence, reason)
        stop_checker = self._stop_checkers.pop(sequence, None)
        text, has_stop = output_text(sequence, self.tokenizer, stop_checker)
        if has_stop and reason is FinishReason.LENGTH:
            reason = FinishReason.STOP
        choice = Choice(
            text=text,
            token_ids=tuple(sequence.token_ids[sequence.num_prompt_tokens :]),
            finish_reason=reason,
            logprobs=None if sequence.params.logprobs is None else tuple(sequence.logprobs),
        )
        self._open[sequence.request_id].choices[sequence] = choice
        stream = self._streams.pop(sequence, None)
        if stream is not None:
            self._deltas.append(stream.close(choice))

    def _fail(self, opened: OpenRequest, error: str) -> Completion:
        for sequence in opened.unfinished:
            self._end(sequence, FinishReason.ERROR)
        del self._open[opened.id]
        return Completion.failed(opened.id, error, opened.num_output_tokens)

    def _close(self, opened: OpenRequest, *, is_cancelled: bool = False) -> Completion:
        del self._open[opened.id]
        return opened.completion(is_cancelled=is_cancelled)
