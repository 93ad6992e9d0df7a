"""Runs all requests of one device together, one Step at a time. Only one thread may use an Engine."""

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
    """Runs requests with continuous batching over one model on one device.

        engine = Engine(EngineConfig(model=path))
        engine.add(GenerationRequest("a", "Once upon a time"))
        while engine.has_unfinished:
            output = engine.step()

    The thread that calls it must build it. Raises ConfigError or CheckpointError while it loads. After that,
    a request that cannot run gets an outcome with an error, and an exception from `step` means that the
    engine is broken.
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
        self._running: Chosen | None = None  # tokens of the last Step that are only on the device yet
        self._streams: dict[Sequence, OutputStream] = {}
        self._deltas: list[Delta] = []  # since the last Step
        self._completions: list[Completion] = []  # of requests that ended outside a Step
        self._arrivals = itertools.count(1)
        self._readings = ReadingQueue(
            config, self.model_info, self.tokenizer, self._scheduler, self._arrivals, clock
        )

    @property
    def model_info(self) -> ModelInfo:
        """The loaded model and the limits it runs under."""
        return self._runner.model_info

    @property
    def has_unfinished(self) -> bool:
        """True while any request lacks its outcome."""
        return bool(self._open or self._completions or self._readings)

    @property
    def wait_seconds(self) -> float | None:
        """Seconds until `step` has work, while readings wait to form a batch; None: not before `add`."""
        return 0.0 if self._open or self._completions else self._readings.wait_seconds

    @property
    def costs(self) -> Costs | None:
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

    def add(self, request: Request) -> None:
        """Queue a request; one that cannot run completes with an error in the next `step`.

        Raises ValueError when an unfinished request has the same id.
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
        """End a request with the output so far; the next `step` returns its outcome. Ignores unknown ids."""
        self._readings.cancel(request_id)
        opened = self._open.get(request_id)
        if opened is not None:
            for sequence in opened.unfinished:
                self._end(sequence, FinishReason.CANCELLED)
            self._completions.append(self._close(opened, is_cancelled=True))

    def output_so_far(self, request_id: Hashable) -> tuple[int, ...] | None:
        """Return the output tokens of an open request, ready for `GenerationRequest.output_token_ids`.

        Returns None for an unknown request and for one that cannot resume (several choices, or logprobs).
        Safe to call from any thread: it reads once a list that only grows.
        """
        opened = self._open.get(request_id)
        if opened is None or len(opened.sequences) > 1 or opened.sequences[0].needs_logprobs:
            return None
        sequence = opened.sequences[0]
        return tuple(sequence.token_ids[sequence.num_prompt_tokens :])

    def step(self) -> StepOutput:
        """Run one Step over the requests that fit in it; return new tokens and outcomes.

        With nothing to run it only returns outcomes. On a GPU it starts a Step before it reads the tokens
        that the previous Step chose, which are still on the device. So it notices the end of a Sequence one
        Step late, and drops the token that the new Step chose for it.
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
        """Forget the contents of cached Blocks; running Sequences keep theirs."""
        self._scheduler.block_pool.clear_cache()

    def check_integrity(self) -> None:
        """Check the Block pool's reference counts against the live Sequences; raises IntegrityError."""
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
        """Resume a new Sequence after the output tokens of an earlier run."""
        params = sequence.params
        stop_checker = None
        if params.stop:
            stop_checker = StopChecker(params.stop, params.min_tokens, self.tokenizer)
        resume(sequence, output_token_ids, stop_checker, self.model_info)
        if stop_checker is not None:
            self._stop_checkers[sequence] = stop_checker

    def _shrink(self, plan: StepPlan, error: OutOfMemoryError) -> StepOutput:
        """Continue with smaller Steps; a request that does not fit the smallest Step fails alone."""
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
        """Append a Step's chosen tokens to their Sequences and count them; return the requests that ended."""
        ended = []
        token_ids = chosen.tokens()
        self._scheduler.took(*self._meter.ended())
        for sequence, token_id in zip(chosen.sequences, token_ids, strict=True):
            sequence.num_pending_tokens = 0
            # The Sequence may have ended already: by its previous token, by `cancel`, or because another
            # choice of its request failed.
            if sequence.state is SequenceState.FINISHED:
                continue
            new_tokens[sequence.request_id] += token_id is not None
            completion = self._append(sequence, token_id)
            if completion is not None:
                ended.append(completion)
        return ended

    def _append(self, sequence: Sequence, token_id: int | None) -> Completion | None:
        """Append a chosen token and end the Sequence if it was its last; return the request's Completion."""
        if token_id is None:
            # Its Blocks may hold the same bad values as its logits, so no other Sequence may share them.
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
        """Remove a Sequence from the scheduler and record its Choice."""
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
