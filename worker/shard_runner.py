"""Runs one shard: claim, submit, save as it goes, finish. Knows no Celery.

Several runners, a thread each, feed one engine, so its batch does not drain at a shard's border.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from threading import Event
from typing import cast

from sqlalchemy.exc import OperationalError

from worker.contract.results import NewResult, RequestError
from worker.contract.states import Outcome
from worker.engine.engine_thread import EngineThread
from worker.engine.sampling import SamplingParams as EngineSampling
from worker.engine.sequence import FinishReason
from worker.engine.step import Completion, GenerationRequest
from worker.engine.submission import Submission
from worker.shard_saver import ShardSaver
from worker.solo import Solo
from worker.store import fair_share, requests, shards
from worker.store.partial_outputs import PartialOutput
from worker.store.requests import ShardRequest
from worker.store.session import Store
from worker.store.shards import Claim, Progress, Saved

logger = logging.getLogger(__name__)

# Results are saved at once when this many wait, else every `save_seconds`.
SAVE_AT = 64
# How long a run waits for the engine to end what it was told to end: that takes one Step.
CUT_SECONDS = 10.0
# Other workers may take what this one finds; more of them than this in a row have work for it elsewhere.
CLAIM_ATTEMPTS = 16


class Ending(StrEnum):
    """How a run of a shard ended."""

    FINISHED = "finished"
    NOTHING_TO_DO = "nothing to do"  # somebody else has it, its batch is over, or we are draining
    STOPPED = "stopped"  # its batch was cancelled or expired
    HANDED_BACK = "handed back"  # this worker is shutting down
    LOST = "lost"  # the lease ran out and somebody else took it


@dataclass(frozen=True, slots=True)
class ShardRunner:
    """Runs shards on one engine, for one worker process."""

    store: Store
    saver: ShardSaver
    engine: EngineThread
    worker: str
    lease: timedelta
    save_seconds: float
    drain_seconds: float
    draining: Event
    checkpoint_tokens: int = 256  # a request is saved each time it has generated so many more
    _solo: Solo = field(default_factory=Solo)
    _runs: set["_Run"] = field(default_factory=set)  # those that go on now

    def run(self, shard_id: int) -> Ending:
        """Run a shard to its end, or as far as it may go."""
        tried: list[int] = []
        while shard_id not in tried and len(tried) < CLAIM_ATTEMPTS and not self.draining.is_set():
            with self.store.transaction() as session:
                # The shard whose turn it is need not be the one that the ticket names.
                tried.append(fair_share.first(session, tried=tried) or shard_id)
                alone = shards.is_suspect(session, tried[-1])
            with self._solo.enter(alone=alone, give_up=self.draining.is_set) as is_in:
                ending = self._claim_and_run(tried[-1]) if is_in else Ending.NOTHING_TO_DO
            if ending is not Ending.NOTHING_TO_DO:
                return ending
        return Ending.NOTHING_TO_DO

    def batch_changed(self, batch_id: str) -> None:
        """Have each run of this batch save now, and hear what has changed."""
        for run in self._runs.copy():
            if run.held.batch_id == batch_id:
                run.must_save.set()
                run.work.wake()

    def _claim_and_run(self, shard_id: int) -> Ending:
        with self.store.transaction() as session:
            held = shards.claim(session, shard_id, worker=self.worker, lease=self.lease)
        if held is None:
            return Ending.NOTHING_TO_DO
        known = {request.id: self._known_tokens(request) for request in held.requests}
        work = self.engine.submit(
            [_to_engine(request, held.batch_id, known[request.id]) for request in held.requests]
        )
        run = _Run(
            held=held,
            work=work,
            max_tokens={request.id: request.max_tokens for request in held.requests},
            checkpoints={request_id: len(tokens) for request_id, tokens in known.items()},
            resumed_tokens=sum(map(len, known.values())),
        )
        self._runs.add(run)
        try:
            return self._follow(run)
        finally:
            self._runs.discard(run)
            work.cancel()

    def _known_tokens(self, request: ShardRequest) -> Sequence[int]:
        kept = request.partial_output
        return () if kept is None or kept.model != self.engine.model_info.name else kept.token_ids

    def _follow(self, run: "_Run") -> Ending:
        while True:
            is_done = run.collect(self.save_seconds)
            must_leave = self._must_leave(run)
            try:
                saved = self._save(run, is_last=is_done and not run.unfinished)
                if saved is Saved.LOST:
                    return Ending.LOST
                if is_done and not run.unfinished:
                    return run.ending
                if is_done or run.is_stuck:
                    return self._hand_back(run)
                self._obey(run, saved, must_leave=must_leave)
            except OperationalError as error:
                # The results stay with us until Postgres is back, or until somebody claims the shard.
                logger.warning("shard %s is not saved yet: %s", run.held.shard_id, str(error).splitlines()[0])
                if must_leave:
                    return Ending.LOST
                time.sleep(self.save_seconds)

    def _must_leave(self, run: "_Run") -> bool:
        if self.draining.is_set():
            run.must_leave_at = min(run.must_leave_at, time.monotonic() + self.drain_seconds)
        return time.monotonic() >= run.must_leave_at

    def _obey(self, run: "_Run", saved: Saved, *, must_leave: bool) -> None:
        if saved is Saved.STOP:
            run.cut(Ending.STOPPED)
        elif saved is Saved.PAUSE or must_leave:
            run.cut(Ending.HANDED_BACK)
        elif saved is Saved.CANCEL_SOME:
            run.cancel_some(self._cancelled_in(run.held.shard_id))

    def _save(self, run: "_Run", *, is_last: bool) -> Saved:
        # The lease follows the engine: one that has stopped stepping must lose its shards.
        idle_seconds = time.monotonic() - self.engine.last_progress_at
        lease = self.lease if idle_seconds < self.lease.total_seconds() / 2 else None
        fresh = {} if is_last else self._fresh_checkpoints(run)
        progress = Progress(run.held, tuple(run.unsaved), run.running_tokens, is_last, fresh)
        saved = self.saver.save(progress, lease=lease)
        run.unsaved.clear()
        run.checkpoints |= {request_id: len(one.token_ids) for request_id, one in fresh.items()}
        return saved

    def _fresh_checkpoints(self, run: "_Run") -> dict[int, PartialOutput]:
        """Return the outputs of requests that have grown enough since they were last saved."""
        fresh = {}
        for request_id, count in run.checkpoints.items():
            found = self.engine.partial_output(run.work, request_id, least=count + self.checkpoint_tokens)
            if found is not None:
                fresh[request_id] = self._to_keep(found.token_ids, found.text)
        return fresh

    def _to_keep(self, token_ids: Sequence[int], text: str) -> PartialOutput:
        return PartialOutput(self.engine.model_info.name, token_ids, text)

    def _cancelled_in(self, shard_id: int) -> list[int]:
        with self.store.transaction() as session:
            return requests.cancelled_in(session, shard_id)

    def _hand_back(self, run: "_Run") -> Ending:
        unfinished = {
            request_id: self._to_keep(one.token_ids, one.text) for request_id, one in run.unfinished.items()
        }
        with self.store.transaction() as session:
            shards.release(session, run.held, unfinished)
        return run.ending


@dataclass(slots=True, eq=False)
class _Run:
    """What one run of a shard has in hand."""

    held: Claim
    work: Submission[Completion]
    max_tokens: dict[int, int]  # request id -> max_tokens
    checkpoints: dict[int, int]  # id of each request without a result -> tokens of it that are stored
    resumed_tokens: int  # generated by earlier runs
    unsaved: list[NewResult] = field(default_factory=list)
    finished_tokens: int = 0
    must_save: Event = field(default_factory=Event)
    ending: Ending = Ending.FINISHED
    must_leave_at: float = float("inf")
    cut_at: float | None = None
    unfinished: dict[int, Completion] = field(default_factory=dict)  # to go on with elsewhere
    unwanted: set[int] = field(default_factory=set)  # requests cancelled one by one

    @property
    def running_tokens(self) -> int:
        """Tokens generated so far by requests that are not finished."""
        return max(0, self.resumed_tokens + self.work.num_output_tokens - self.finished_tokens)

    @property
    def is_stuck(self) -> bool:
        """Whether the engine was told to end this long ago and has not; somebody else sees to the engine."""
        return self.cut_at is not None and time.monotonic() - self.cut_at > CUT_SECONDS

    def cut(self, ending: Ending) -> None:
        """End what still runs: its output so far is its result, or to be handed back."""
        if self.cut_at is None:
            self.ending = ending
            self.cut_at = time.monotonic()
            self.work.cancel()

    def cancel_some(self, request_ids: Sequence[int]) -> None:
        """End these requests, with what they have."""
        if fresh := set(request_ids) - self.unwanted:
            self.unwanted |= fresh
            self.work.cancel(*fresh)

    def collect(self, seconds: float) -> bool:
        """Take what finishes until the clock's next multiple of `seconds`; say whether that was the last.

        All runs meet at those times, and save together; one that was told to comes at once.
        """
        deadline = (time.monotonic() // seconds + 1) * seconds
        while not self.work.is_done and len(self.unsaved) < SAVE_AT and not self.must_save.is_set():
            wait = deadline - time.monotonic()
            if wait <= 0:
                break
            self._keep(self.work.take(wait))
        self.must_save.clear()
        self._keep(self.work.take(0))
        return self.work.is_done

    def _keep(self, completions: Sequence[Completion]) -> None:
        for completion in completions:
            request_id = cast("int", completion.id)  # as we gave it
            is_cut = completion.finish_reason is FinishReason.CANCELLED
            self.checkpoints.pop(request_id, None)
            if is_cut and self.ending is Ending.HANDED_BACK and request_id not in self.unwanted:
                self.unfinished[request_id] = completion
                continue
            result = _to_result(request_id, completion, self.max_tokens[request_id])
            if request_id in self.unwanted and is_cut:
                result = replace(result, error=shards.REQUEST_CANCELLED)
            self.unsaved.append(result)
            self.finished_tokens += completion.num_output_tokens


def _to_engine(request: ShardRequest, batch_id: str, output_token_ids: Sequence[int]) -> GenerationRequest:
    params = request.params
    return GenerationRequest(
        id=request.id,
        prompt=request.prompt,
        add_special_tokens=request.add_special_tokens,
        job=batch_id,
        output_token_ids=output_token_ids,
        params=EngineSampling(
            max_tokens=request.max_tokens,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
            seed=params.seed,
            stop=params.stop,
            ignore_eos=params.ignore_eos,
        ),
    )


def _to_result(request_id: int, completion: Completion, max_tokens: int) -> NewResult:
    error = None if completion.error is None else RequestError("generation_failed", completion.error)
    outcome = Outcome.COMPLETED if error is None else Outcome.FAILED
    if completion.finish_reason is FinishReason.CANCELLED:
        outcome = Outcome.CANCELLED
    return NewResult(
        request_id=request_id,
        outcome=outcome,
        output=completion.text if error is None else None,
        finish_reason=completion.finish_reason.value,
        num_prompt_tokens=completion.num_prompt_tokens,
        num_cached_tokens=completion.num_cached_tokens,
        num_output_tokens=completion.num_output_tokens,
        max_tokens=max_tokens,
        error=error,
    )
