"""The engine: takes requests and advances all of them together, a Step at a time. One thread's property."""

import itertools
import secrets
import time
from collections.abc import Callable, Hashable

from worker.engine.block_pool import BlockPool
from worker.engine.config import EngineConfig
from worker.engine.errors import InvalidRequestError
from worker.engine.model_runner import ModelRunner
from worker.engine.models.checkpoint import read_eos_token_ids
from worker.engine.prefix_cache import PrefixCache
from worker.engine.reading_queue import ReadingQueue
from worker.engine.scheduler import Scheduler
from worker.engine.sequence import FinishReason, Sequence
from worker.engine.step import Completion, EngineStats, GenerationRequest, ModelInfo, Request, StepOutput
from worker.engine.stopping import StopChecker, finish_reason, output_text
from worker.engine.tokenizer import Tokenizer


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
        self._scheduler = Scheduler(
            BlockPool(self.model_info.num_blocks, PrefixCache() if config.enable_prefix_cache else None),
            block_size=config.block_size,
            max_num_sequences=config.max_num_sequences,
            max_tokens_per_step=config.max_tokens_per_step,
            stats=self.stats,
        )
        self._sequences: dict[Hashable, Sequence] = {}
        self._stop_checkers: dict[Hashable, StopChecker] = {}
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
        return bool(self._sequences or self._completions or self._readings)

    @property
    def wait_seconds(self) -> float | None:
        """How long a `step` would bring nothing, while readings wait for others; None: until `add`."""
        return 0.0 if self._sequences or self._completions else self._readings.wait_seconds

    @property
    def num_running(self) -> int:
        """Requests that hold Blocks."""
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        """Requests that hold none."""
        return self._scheduler.num_waiting + self._readings.num_queued

    def add(self, request: Request) -> None:
        """Queue a request; one that cannot run completes in the next `step` with an error.

        Raises ValueError when the id is that of a request still unfinished.
        """
        if request.id in self._sequences or request.id in self._readings:
            raise ValueError(f"request {request.id!r} is already running")
        if not isinstance(request, GenerationRequest):
            self._readings.add(request)
            return
        try:
            sequence = self._sequence(request)
        except InvalidRequestError as error:
            self._completions.append(
                Completion(request.id, "", (), FinishReason.ERROR, 0, 0, error=str(error))
            )
            return
        self._sequences[request.id] = sequence
        if request.params.stop:
            self._stop_checkers[request.id] = StopChecker(request.params.stop, self.tokenizer)
        self._scheduler.add(sequence)

    def cancel(self, request_id: Hashable) -> None:
        """End a request with what it has; the next `step` brings its outcome. Unknown ids are ignored."""
        self._readings.cancel(request_id)
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._completions.append(self._complete(sequence, FinishReason.CANCELLED))

    def step(self) -> StepOutput:
        """Advance every request that the next Step has room for; without any, only hand out outcomes."""
        self._readings.release()
        plan = self._scheduler.schedule()
        sampled = self._runner.execute(plan) if plan.entries else []
        self._scheduler.advance(plan)
        ended, self._completions = self._completions, []
        ended += [completion for sequence, token in sampled if (completion := self._append(sequence, token))]
        self.stats.steps += bool(plan.entries)
        self.stats.decode_tokens += len(sampled)
        new_tokens = {sequence.request_id: 1 for sequence, _ in sampled}
        return StepOutput(new_tokens, tuple(ended), self._readings.collect(plan))

    def check_integrity(self) -> None:
        """Compare the Block pool's books with the live Sequences; raises IntegrityError."""
        self._scheduler.check_integrity()

    def _sequence(self, request: GenerationRequest) -> Sequence:
        if isinstance(request.prompt, str):
            texts = [request.prompt]
            token_ids = self.tokenizer.encode_batch(texts, add_special_tokens=request.add_special_tokens)[0]
        else:
            token_ids = list(request.prompt)
        if not token_ids:
            raise InvalidRequestError("the prompt is empty")
        info = self.model_info
        if len(token_ids) >= info.max_model_len:
            raise InvalidRequestError(
                f"the prompt has {len(token_ids)} tokens; the longest this model takes is "
                f"{info.max_model_len - 1}, which leaves room for one more"
            )
        if min(token_ids) < 0 or max(token_ids) >= info.vocab_size:
            raise InvalidRequestError(f"the prompt has a token id outside 0..{info.vocab_size - 1}")
        params = request.params
        named = [*(token for token, _ in params.logit_bias), *params.stop_token_ids]
        if named and (min(named) < 0 or max(named) >= info.vocab_size):
            raise InvalidRequestError(
                f"logit_bias or stop_token_ids has an id outside 0..{info.vocab_size - 1}"
            )
        stop_token_ids = frozenset(params.stop_token_ids)
        return Sequence(
            request_id=request.id,
            arrival=next(self._arrivals),
            token_ids=token_ids,
            num_prompt_tokens=len(token_ids),
            params=params,
            seed=(secrets.randbits(64) if params.seed is None else params.seed) % 2**64,
            stop_token_ids=stop_token_ids if params.ignore_eos else stop_token_ids | self._eos_token_ids,
        )

    def _append(self, sequence: Sequence, token_id: int) -> Completion | None:
        """Add a chosen token, and end the Sequence if it was the last one."""
        sequence.token_ids.append(token_id)
        reason = finish_reason(sequence, self.model_info.max_model_len)
        if (
            reason is None
            and sequence.params.stop
            and self._stop_checkers[sequence.request_id].push(token_id)
        ):
            reason = FinishReason.STOP
        return None if reason is None else self._complete(sequence, reason)

    def _complete(self, sequence: Sequence, reason: FinishReason) -> Completion:
        self._scheduler.finish(sequence)
        del self._sequences[sequence.request_id]
        self._stop_checkers.pop(sequence.request_id, None)
        text, has_stop = output_text(sequence, self.tokenizer)
        if has_stop and reason is FinishReason.LENGTH:
            reason = FinishReason.STOP
        return Completion(
            id=sequence.request_id,
            text=text,
            token_ids=tuple(sequence.token_ids[sequence.num_prompt_tokens :]),
            finish_reason=reason,
            num_prompt_tokens=sequence.num_prompt_tokens,
            num_cached_tokens=sequence.num_cached_tokens or 0,
            logprobs=None if sequence.params.logprobs is None else tuple(sequence.logprobs),
        )
