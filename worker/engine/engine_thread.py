"""Runs an Engine on threads of its own; all other threads reach the engine through EngineThread."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, cast, overload

from worker.engine.engine import Engine
from worker.engine.requests.embedding import Embedding, EmbeddingRequest
from worker.engine.requests.errors import EngineError, EngineFailedError, EngineStoppedError
from worker.engine.requests.generation import Answer, Completion, EngineRequest, GenerationRequest
from worker.engine.requests.scoring import Scores, ScoringRequest
from worker.engine.requests.stats import BlockUse, EngineStats, ModelInfo
from worker.engine.scheduling.plan import StepOutput
from worker.engine.submission import Submission
from worker.engine.text.encoding import encode_requests
from worker.values.delta import Delta
from worker.values.results import PartialOutput
from worker.values.step_costs import StepCosts

logger = logging.getLogger(__name__)

# Requests that are tokenized before the engine may start them.
ENCODED_AT_ONCE = 64

_Key = tuple[Submission[Any], Hashable]  # the request's id inside the engine


@dataclass(frozen=True, slots=True)
class _Order:
    """A message from another thread: requests to add or, if there are none, requests to cancel.

    Without `cancelled_ids` it cancels the whole Submission.
    """

    submission: Submission[Any]
    requests: tuple[EngineRequest, ...] = ()
    cancelled_ids: tuple[Hashable, ...] = ()


class EngineThread:
    """Runs Steps while there is work and sleeps on a condition while there is none.

        thread = EngineThread(lambda: Engine(config))
        thread.start()
        submission = thread.submit(requests)

    When a Step raises, the engine is broken for good. Every open Submission is woken with the error, then
    `on_failure` is called on the engine's thread.
    """

    def __init__(
        self,
        engine_factory: Callable[[], Engine],
        *,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.failure: BaseException | None = None
        self._engine_factory = engine_factory
        self._on_failure = on_failure
        self._engine: Engine | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._loaded = threading.Event()
        self._wake = threading.Condition()  # guards the inbox and the three fields below it
        self._inbox: deque[_Order] = deque()
        self._is_closed = False
        self._must_clear = False  # clear the prefix cache before the next Step
        self._drain_deadline: float | None = None
        self._guard = threading.Condition(threading.Lock())  # who holds it may use the engine
        self._error: BaseException | None = None  # that a Step has raised
        self._is_over = False
        self._busy_since: dict[int, float] = {}  # by thread, while it does something that has to end
        # Open requests of each Submission; used with the guard.
        self._open: dict[Submission[Any], set[Hashable]] = {}

    def start(self) -> None:
        """Start the thread and wait until the engine is loaded; re-raises an exception from loading."""
        self._thread.start()
        self._loaded.wait()
        if self.failure is not None:
            raise self.failure

    def stop(self, drain_seconds: float = 0.0) -> None:
        """Refuse new work, finish open requests within `drain_seconds`, and end the thread.

        Submissions still open after that are woken with EngineStoppedError.
        """
        with self._wake:
            self._is_closed = True
            self._drain_deadline = time.monotonic() + drain_seconds
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    @overload
    def submit(
        self, requests: Sequence[GenerationRequest], on_delta: Callable[[Delta], None] | None = None
    ) -> Submission[Completion]: ...

    @overload
    def submit(self, requests: Sequence[EmbeddingRequest]) -> Submission[Embedding]: ...

    @overload
    def submit(self, requests: Sequence[ScoringRequest]) -> Submission[Scores]: ...

    @overload
    def submit(
        self, requests: Sequence[EngineRequest], on_delta: Callable[[Delta], None] | None = None
    ) -> Submission[Answer]: ...

    def submit(
        self, requests: Sequence[EngineRequest], on_delta: Callable[[Delta], None] | None = None
    ) -> Submission[Any]:
        """Queue requests and return the handle on their outcomes.

        Ids must be unique only among these requests. `on_delta` receives the text of streamed requests as it
        comes; it is called on a thread of the engine, so it must be quick. Text is tokenized and grammars are
        compiled here, in the caller's thread; the first requests may run while the next are tokenized.

        Raises ValueError on a repeated id, and EngineStoppedError or EngineFailedError once the thread takes
        no more work.
        """
        submission: Submission[Any] = Submission(0, self._cancel, on_delta)
        self.extend(submission, requests)
        return submission

    def extend(self, submission: Submission[Any], requests: Sequence[EngineRequest]) -> None:
        """Queue further requests of a Submission, with ids that none of its open requests has.

        Raises as `submit` does.
        """
        if len({request.id for request in requests}) != len(requests):
            raise ValueError("two requests have the same id")
        engine = self._loaded_engine()
        for request in requests:
            if isinstance(request, GenerationRequest) and request.params.format is not None:
                engine.grammars.prepare(request.params.format)
        with self._wake:
            self._check_open()
            submission.expect(len(requests))
        for start in range(0, len(requests), ENCODED_AT_ONCE):
            some = encode_requests(requests[start : start + ENCODED_AT_ONCE], engine.tokenizer)
            with self._wake:
                self._check_open()
                self._inbox.append(_Order(submission, tuple(some)))
                self._wake.notify_all()

    def _check_open(self) -> None:
        if self.failure is not None:
            raise EngineFailedError("the engine failed") from self.failure
        if self._is_closed:
            raise EngineStoppedError("the engine is stopped and takes no more requests")

    def clear_prefix_cache(self) -> None:
        """Make the engine forget the contents of cached Blocks before its next Step."""
        with self._wake:
            self._must_clear = True
            self._wake.notify_all()

    @property
    def last_progress_at(self) -> float:
        """`time.monotonic()` when the oldest running Step began; the current time while there is none."""
        return min(list(self._busy_since.values()), default=time.monotonic())

    @property
    def model_info(self) -> ModelInfo:
        """The loaded model; raises EngineStoppedError before `start`."""
        return self._loaded_engine().model_info

    @property
    def limits(self) -> dict[str, Any]:
        """The configured limits of the engine, beside those in `model_info`."""
        engine = self._loaded_engine()
        config = engine.config
        return {
            "max_num_sequences": config.max_num_sequences,
            "steps_at_once": engine.steps_at_once,
            "max_tokens_per_step": config.max_tokens_per_step,
            "enable_prefix_cache": config.enable_prefix_cache,
            "admission": config.admission,
            "batch_policy": asdict(config.batch_policy),
        }

    @property
    def stats(self) -> EngineStats:
        """A copy of the engine's counters."""
        return replace(self._loaded_engine().stats)

    @property
    def block_use(self) -> BlockUse:
        """The use of the KV cache now."""
        return self._loaded_engine().block_use

    @property
    def step_limits(self) -> tuple[int, int]:
        """The most Sequences and tokens of a Step now."""
        return self._loaded_engine().step_limits

    @property
    def costs(self) -> StepCosts | None:
        """The measured costs of Steps by size; None until enough Steps were measured."""
        return self._loaded_engine().costs

    @property
    def num_running(self) -> int:
        """Number of Sequences that hold Blocks."""
        return self._loaded_engine().num_running

    @property
    def num_waiting(self) -> int:
        """Number of Sequences and readings that wait in the engine, without requests still in the inbox."""
        return self._loaded_engine().num_waiting

    def _loaded_engine(self) -> Engine:
        if self._engine is None:
            raise EngineStoppedError("the engine is not loaded")
        return self._engine

    def partial_output(
        self, submission: Submission[Any], request_id: Hashable, *, least: int
    ) -> PartialOutput | None:
        """Return the output so far of an open request; None while it has fewer than `least` tokens.

        Also None for a request that cannot resume from known tokens.
        """
        engine = self._loaded_engine()
        key = (submission, request_id)
        token_ids = engine.output_so_far(key)
        if token_ids is None or len(token_ids) < least:
            return None
        return PartialOutput(token_ids, engine.tokenizer.decode(token_ids), started_at=engine.started_at(key))

    def _cancel(self, submission: Submission[Any], request_ids: tuple[Hashable, ...]) -> None:
        with self._wake:
            self._inbox.append(_Order(submission, cancelled_ids=request_ids))
            self._wake.notify_all()

    def _run(self) -> None:
        try:
            self._engine = engine = self._engine_factory()
        except BaseException as error:  # noqa: BLE001  (re-raised by `start`, in the caller's thread)
            self.failure = error
            self._is_closed = True
            self._loaded.set()
            return
        self._loaded.set()
        others = [
            threading.Thread(target=self._run_beside, args=(engine,), name=f"engine-{number}", daemon=True)
            for number in range(2, engine.steps_at_once + 1)
        ]
        for thread in others:
            thread.start()
        with self._guard:
            self._run_steps(engine)
            self._is_over = True
            self._guard.notify_all()
        for thread in others:
            thread.join()
        if self._error is None:
            self._end(EngineStoppedError("the engine stopped before every request had its outcome"), None)
        else:
            self._end(EngineFailedError(f"the engine failed: {self._error}"), self._error)

    def _run_steps(self, engine: Engine) -> None:
        """Run Steps until the thread is stopped or a Step has failed."""
        try:
            while self._error is None and self._receive(engine):
                if engine.can_step:
                    self._step(engine)
                elif engine.is_running:
                    self._guard.wait()
        except BaseException as error:
            logger.exception("the engine failed")
            self._error = self._error or error

    def _run_beside(self, engine: Engine) -> None:
        """Run Steps beside those of the engine's first thread, until it ends."""
        with self._guard:
            try:
                while not (self._is_over or self._error):
                    self._apply_orders(engine)
                    if engine.can_step_beside:
                        self._step(engine)
                    else:
                        self._guard.wait()
            except BaseException as error:
                logger.exception("the engine failed")
                self._error = self._error or error
                self._guard.notify_all()

    def _step(self, engine: Engine) -> None:
        with self._busy():
            self._deliver(engine.step(self._guard))

    @contextmanager
    def _busy(self) -> Iterator[None]:
        """Let `last_progress_at` say since when this thread does something that has to end."""
        own = threading.get_ident()
        self._busy_since[own] = time.monotonic()
        try:
            yield
        finally:
            del self._busy_since[own]

    def _receive(self, engine: Engine) -> bool:
        """Apply orders from other threads, sleeping while there is no work; return False to end the loop."""
        with self._wake:
            while not (self._inbox or self._must_clear) and (seconds := self._idle_seconds(engine)) != 0:
                self._wake.wait(seconds)
            deadline = self._drain_deadline
        self._apply_orders(engine)
        return deadline is None or (engine.has_unfinished and time.monotonic() < deadline)

    def _apply_orders(self, engine: Engine) -> None:
        with self._wake:
            orders = tuple(self._inbox)
            self._inbox.clear()
            must_clear, self._must_clear = self._must_clear, False
        with self._busy():
            if must_clear:
                engine.clear_prefix_cache()
            for order in orders:
                self._apply(order, engine)

    def _apply(self, order: _Order, engine: Engine) -> None:
        if order.requests:
            self._open.setdefault(order.submission, set()).update(one.id for one in order.requests)
            for request in order.requests:
                engine.add(replace(request, id=(order.submission, request.id)))
        else:
            for request_id in order.cancelled_ids or self._open.get(order.submission, ()):
                engine.cancel((order.submission, request_id))

    def _idle_seconds(self, engine: Engine) -> float | None:
        """Return the seconds until there is work; None: until another thread asks for something."""
        seconds = engine.wait_seconds
        if self._drain_deadline is None:
            return seconds
        return min(seconds or 0.0, max(0.0, self._drain_deadline - time.monotonic()))

    def _deliver(self, output: StepOutput) -> None:
        for key, count in output.num_new_tokens.items():
            cast("_Key", key)[0].num_output_tokens += count
        for delta in output.deltas:
            submission, request_id = cast("_Key", delta.id)
            if submission.on_delta is not None:
                submission.on_delta(replace(delta, id=request_id))
        arrived: dict[Submission[Any], list[Answer]] = {}
        for outcome in (*output.completions, *output.readings):
            submission, request_id = cast("_Key", outcome.id)
            arrived.setdefault(submission, []).append(replace(outcome, id=request_id))
            self._open[submission].discard(request_id)
        for submission, outcomes in arrived.items():
            if not self._open[submission]:
                del self._open[submission]
            submission.deliver(outcomes)

    def _end(self, error: EngineError, cause: BaseException | None) -> None:
        """Close the inbox and fail all open Submissions with `error`."""
        error.__cause__ = cause
        with self._wake:
            self.failure = cause
            self._is_closed = True
            orders = tuple(self._inbox)
            self._inbox.clear()
        for submission in {*self._open, *(order.submission for order in orders)}:
            submission.fail(error)
        self._open.clear()
        if cause is not None and self._on_failure is not None:
            self._on_failure(cause)
