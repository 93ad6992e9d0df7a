"""Run one shard: claim, submit, save results as they come, finish. Must not know Celery.

Several runners, a thread each, feed one engine, so it does not run empty when a shard ends.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import cycle
from threading import Event, Lock

from worker.engine.engine_thread import EngineThread
from worker.engine.requests.errors import InvalidRequestError
from worker.engine.requests.generation import Completion, Outcome, Request
from worker.engine.requests.share import Share
from worker.engine.submission import Submission
from worker.runs.lease_keeper import LeaseKeeper
from worker.runs.response_cache import Lookup, ResponseCache
from worker.runs.run_meters import RunMeters
from worker.runs.shard_saver import ShardSaver
from worker.runs.solo import Solo
from worker.runs.translation import (
    Parts,
    can_resume,
    failed,
    is_cancelled,
    num_output_tokens,
    to_engine,
    to_result,
)
from worker.store.database.session import DATABASE_AWAY, Store
from worker.store.requests import requests
from worker.store.requests.partial_outputs import PartialOutput
from worker.store.requests.requests import ShardRequest
from worker.store.shards import fair_share, shards
from worker.store.shards.shards import AfterSave, Claim, Progress
from worker.values.results import CacheEntry, NewResult

logger = logging.getLogger(__name__)

# Results are saved at once when this many wait, else every `save_seconds`.
SAVE_AT = 64
# How long a run waits for the engine to end cancelled requests, which takes one Step.
CUT_SECONDS = 10.0
# Other workers may claim the shard that this one chose; after this many tries in a row a run gives up.
CLAIM_ATTEMPTS = 16


class Ending(StrEnum):
    """Reason for the end of a shard's run."""

    FINISHED = "finished"
    NOTHING_TO_DO = "nothing to do"  # another worker holds it, its batch ended, or this worker drains
    STOPPED = "stopped"  # its batch was cancelled or expired
    HANDED_BACK = "handed back"  # this worker is shutting down
    LOST = "lost"  # the lease expired and another worker claimed it


@dataclass(frozen=True, slots=True)
class ShardRunner:
    """Runs shards on one engine, for one worker process."""

    store: Store
    saver: ShardSaver
    engine: EngineThread
    keeper: LeaseKeeper
    save_seconds: float
    drain_seconds: float
    draining: Event
    meters: RunMeters = field(default_factory=RunMeters)
    cache: ResponseCache | None = None
    checkpoint_tokens: int = 256  # a partial output is saved each time it has grown by so many
    _solo: Solo = field(default_factory=Solo)
    _runs: set["_Run"] = field(default_factory=set)  # in progress
    _choosing: Lock = field(default_factory=Lock)
    _chosen: set[int] = field(default_factory=set)  # shards that runs here have chosen, until they end
    _orders: Iterator[bool] = field(default_factory=lambda: cycle((True, False)))  # values of `fewest`

    @property
    def num_running(self) -> int:
        """The number of shards that run now."""
        return len(self._runs)

    def run(self, shard_id: int) -> Ending:
        """Run the shard whose turn it is, as one ticket allows, to its end or until it must stop."""
        tried: set[int] = set()
        while len(tried) < CLAIM_ATTEMPTS and not self.draining.is_set():
            # The ticket may name another shard than the one whose turn it is.
            with self._choose(tried, otherwise=shard_id) as chosen:
                if chosen in tried:
                    break
                tried.add(chosen)
                ending = self.run_this(chosen)
            if ending is not Ending.NOTHING_TO_DO:
                return ending
        return Ending.NOTHING_TO_DO

    @contextmanager
    def _choose(self, tried: AbstractSet[int], *, otherwise: int) -> Iterator[int]:
        """Choose the shard whose turn it is; during the block no other run of this process chooses it."""
        with self._choosing:
            with self.store.transaction() as session:
                found = fair_share.first(
                    session,
                    but=tried | self._chosen,
                    fewest=next(self._orders),
                    model=self.keeper.serves,
                )
            chosen = otherwise if found is None else found
            self._chosen.add(chosen)
        try:
            yield chosen
        finally:
            self._chosen.discard(chosen)

    def run_this(self, shard_id: int) -> Ending:
        """Run this shard and no other, if it is ready."""
        with self.store.transaction() as session:
            alone = shards.is_suspect(session, shard_id, model=self.keeper.serves)
        with self._solo.enter(alone=alone, give_up=self.draining.is_set) as is_in:
            return self._claim_and_run(shard_id) if is_in else Ending.NOTHING_TO_DO

    def batch_changed(self, batch_id: str) -> None:
        """Make the runs of this batch save now; the save's answer says what has changed."""
        for run in self._runs.copy():
            if run.held.batch_id == batch_id:
                run.must_save.set()
                run.work.wake()

    def _claim_and_run(self, shard_id: int) -> Ending:
        with self.keeper.hold(shard_id) as held:
            return Ending.NOTHING_TO_DO if held is None else self._run(held)

    def _run(self, held: Claim) -> Ending:
        lookup = self._look_up(held)
        answered = {answer.request_id for answer in lookup.answers}
        to_run = [request for request in held.requests if request.id not in answered]
        parts = Parts(to_run)
        known = {request.id: self._known_tokens(request) for request in to_run if can_resume(request)}
        share = Share(held.tenant_id, held.weight, held.priority, held.batch_id)
        asked: list[Request] = []
        unsaved = lookup.answers
        for request in to_run:
            try:
                tokens = known.get(request.id, ())
                batch_id = held.batch_id
                asked += to_engine(request, batch_id, job=batch_id, share=share, output_token_ids=tokens)
            except InvalidRequestError as error:
                unsaved.append(failed(request, str(error)))
                known.pop(request.id, None)
        run = _Run(
            held=held,
            work=self.engine.submit(asked),
            parts=parts,
            unsaved=unsaved,
            meters=self.meters,
            entries=lookup.entries,
            checkpoints={request_id: len(tokens) for request_id, tokens in known.items()},
            resumed_tokens=sum(map(len, known.values())),
        )
        self._runs.add(run)
        try:
            return self._follow(run)
        finally:
            self._runs.discard(run)
            run.work.cancel()

    def _look_up(self, held: Claim) -> Lookup:
        lookup = Lookup() if self.cache is None else self.cache.look_up(held)
        self.meters.looked_up(lookup.num_asked)
        return lookup

    def _known_tokens(self, request: ShardRequest) -> Sequence[int]:
        kept = request.partial_output
        return () if kept is None or kept.model_id != self.keeper.model_id else kept.token_ids

    def _follow(self, run: "_Run") -> Ending:
        while True:
            is_done = run.collect(self.save_seconds)
            must_leave = self._must_leave(run)
            try:
                saved = self._save(run, is_last=is_done and not run.unfinished)
                if saved is AfterSave.LOST:
                    return Ending.LOST
                if is_done and not run.unfinished:
                    return run.ending
                if is_done or run.is_stuck:
                    return self._hand_back(run)
                self._obey(run, saved, must_leave=must_leave)
            except DATABASE_AWAY as error:
                # Keep the results until Postgres is back, or until another worker claims the shard.
                logger.warning("shard %s is not saved yet: %s", run.held.shard_id, str(error).splitlines()[0])
                if must_leave:
                    return Ending.LOST
                time.sleep(self.save_seconds)

    def _must_leave(self, run: "_Run") -> bool:
        if self.draining.is_set():
            run.must_leave_at = min(run.must_leave_at, time.monotonic() + self.drain_seconds)
        return time.monotonic() >= run.must_leave_at

    def _obey(self, run: "_Run", saved: AfterSave, *, must_leave: bool) -> None:
        if saved is AfterSave.STOP:
            run.cut(Ending.STOPPED)
        elif saved is AfterSave.PAUSE or must_leave:
            run.cut(Ending.HANDED_BACK)
        elif saved is AfterSave.CANCEL_SOME:
            run.cancel_some(self._cancelled_in(run.held.shard_id))

    def _save(self, run: "_Run", *, is_last: bool) -> AfterSave:
        fresh = {} if is_last else self._fresh_checkpoints(run)
        progress = Progress(run.held, tuple(run.unsaved), run.running_tokens, is_last, fresh)
        saved = self.saver.save(progress, lease=self.keeper.lease)
        if saved is not AfterSave.LOST:
            self.meters.saved(progress.results)
        run.unsaved.clear()
        run.checkpoints |= {request_id: len(one.token_ids) for request_id, one in fresh.items()}
        return saved

    def _fresh_checkpoints(self, run: "_Run") -> dict[int, PartialOutput]:
        """Return the partial outputs that have grown enough since they were last saved."""
        fresh = {}
        for request_id, count in run.checkpoints.items():
            (part,) = run.parts.ids([request_id])
            found = self.engine.partial_output(run.work, part, least=count + self.checkpoint_tokens)
            if found is not None:
                fresh[request_id] = self._to_keep(found.token_ids, found.text)
        return fresh

    def _to_keep(self, token_ids: Sequence[int], text: str) -> PartialOutput:
        return PartialOutput(self.keeper.model_id, token_ids, text)

    def _cancelled_in(self, shard_id: int) -> list[int]:
        with self.store.transaction() as session:
            return requests.cancelled_in(session, shard_id)

    def _hand_back(self, run: "_Run") -> Ending:
        unfinished = {
            request_id: self._to_keep(one.token_ids, one.text)
            for request_id, one in run.unfinished.items()
            if isinstance(one, Completion) and can_resume(run.parts.requests[request_id])
        }
        with self.store.transaction() as session:
            shards.release(session, run.held, unfinished)
        return run.ending


@dataclass(slots=True, eq=False)
class _Run:
    """State of one run of a shard."""

    held: Claim
    work: Submission[Outcome]
    parts: Parts
    unsaved: list[NewResult]
    meters: RunMeters
    entries: dict[int, CacheEntry]  # of requests whose answers will be cached, by request id
    checkpoints: dict[int, int]  # id of each resumable request -> its number of stored tokens
    resumed_tokens: int  # generated by earlier runs
    finished_tokens: int = 0
    must_save: Event = field(default_factory=Event)
    ending: Ending = Ending.FINISHED
    must_leave_at: float = float("inf")
    cut_at: float | None = None
    unfinished: dict[int, Outcome] = field(default_factory=dict)  # of the first prompt, by id; to resume
    unwanted: set[int] = field(default_factory=set)  # requests cancelled one by one
    began_at: float = field(default_factory=time.monotonic)

    @property
    def running_tokens(self) -> int:
        """The tokens generated so far by unfinished requests."""
        return max(0, self.resumed_tokens + self.work.num_output_tokens - self.finished_tokens)

    @property
    def is_stuck(self) -> bool:
        """Return whether the engine has not ended cancelled requests in time; the heartbeat handles it."""
        return self.cut_at is not None and time.monotonic() - self.cut_at > CUT_SECONDS

    def cut(self, ending: Ending) -> None:
        """Cancel running requests: their outputs so far become results, or are handed back."""
        if self.cut_at is None:
            self.ending = ending
            self.cut_at = time.monotonic()
            self.work.cancel()

    def cancel_some(self, request_ids: Sequence[int]) -> None:
        """Cancel these requests; their outputs so far become their results."""
        if fresh := (set(request_ids) & self.parts.requests.keys()) - self.unwanted:
            self.unwanted |= fresh
            self.work.cancel(*self.parts.ids(fresh))

    def collect(self, seconds: float) -> bool:
        """Collect outcomes until the clock's next multiple of `seconds`; return whether all have arrived.

        All runs share those times, so they save together. `must_save` or SAVE_AT results end it early.
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

    def _keep(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if (whole := self.parts.add(outcome)) is None:
                continue
            request, parts = whole
            self.checkpoints.pop(request.id, None)
            is_cut = any(map(is_cancelled, parts))
            is_unwanted = request.id in self.unwanted
            if is_cut and self.ending is Ending.HANDED_BACK and not is_unwanted:
                self.unfinished[request.id] = parts[0]
                continue
            result = to_result(request, parts, keep=self.entries.get(request.id))
            if is_cut and is_unwanted:
                result = replace(result, error=shards.REQUEST_CANCELLED, num_copies=1)
            self.unsaved.append(result)
            self.meters.took(time.monotonic() - self.began_at, result.num_copies)
            self.finished_tokens += num_output_tokens(parts)
