"""Run one interactive shard: claim, submit as urgent, stream outputs, save at once. Must not know Celery."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Protocol, cast

from worker.contract.feed import Message, Saved, Told
from worker.engine.engine_thread import EngineThread
from worker.engine.requests.errors import InvalidRequestError
from worker.engine.requests.generation import Delta, FinishReason, Outcome, Request
from worker.engine.requests.share import Share
from worker.engine.submission import Submission
from worker.runs.lease_keeper import LeaseKeeper
from worker.runs.response_cache import Lookup, ResponseCache
from worker.runs.run_meters import RunMeters
from worker.runs.translation import (
    PartId,
    Parts,
    failed,
    is_cancelled,
    num_output_tokens,
    to_engine,
    to_logprobs,
    to_result,
)
from worker.store.database.session import DATABASE_AWAY, Store
from worker.store.shards import shards
from worker.store.shards.shards import AfterSave, Claim, Progress
from worker.values.results import NewResult, storable
from worker.values.sampling import SamplingParams

logger = logging.getLogger(__name__)

URGENT = 1


class Feed(Protocol):
    """Takes messages about interactive work."""

    def tell(self, batch_id: str, message: Message) -> None:
        """Send a message to the listeners of a batch."""


@dataclass(frozen=True, slots=True)
class InteractiveRunner:
    """Runs interactive shards on one engine, for one worker process."""

    store: Store
    engine: EngineThread
    feed: Feed
    keeper: LeaseKeeper
    save_seconds: float
    drain_seconds: float
    draining: Event
    meters: RunMeters = field(default_factory=RunMeters)
    cache: ResponseCache | None = None
    _runs: set["_Run"] = field(default_factory=set)  # in progress

    def run(self, shard_id: int) -> None:
        """Run a shard to its end, if it is ready and nobody else holds it."""
        if self.draining.is_set():
            return
        with self.keeper.hold(shard_id) as held:
            if held is not None:
                self._run(held)

    def _run(self, held: Claim) -> None:
        run = _Run(held, self.feed, self.meters, self._look_up(held))
        run.submit(self.engine)
        self._runs.add(run)
        try:
            self._follow(run)
        finally:
            self._runs.discard(run)
            run.work.cancel()

    def _look_up(self, held: Claim) -> Lookup:
        lookup = Lookup() if self.cache is None else self.cache.look_up(held)
        self.meters.looked_up(lookup.num_asked)
        return lookup

    def batch_changed(self, batch_id: str) -> None:
        """Make the runs of this batch save now; the save's answer says what has changed."""
        for run in self._runs.copy():
            if run.held.batch_id == batch_id:
                run.must_save.set()
                run.work.wake()

    def _follow(self, run: "_Run") -> None:
        must_leave_at = float("inf")
        while True:
            is_done = run.collect(self.save_seconds)
            if self.draining.is_set():
                must_leave_at = min(must_leave_at, time.monotonic() + self.drain_seconds)
            is_over_time = time.monotonic() >= must_leave_at
            try:
                verdict = self._save(run, is_last=is_done)
                if is_done or verdict is AfterSave.LOST:
                    return
                if verdict is not AfterSave.CONTINUE or is_over_time:
                    with self.store.transaction() as session:
                        shards.release(session, run.held)
                    return
            except DATABASE_AWAY as error:
                logger.warning("shard %s is not saved yet: %s", run.held.shard_id, str(error).splitlines()[0])
                if is_over_time:
                    return
                time.sleep(self.save_seconds)

    def _save(self, run: "_Run", *, is_last: bool) -> AfterSave:
        progress = Progress(run.held, tuple(run.unsaved), run.running_tokens, is_last)
        with self.store.transaction() as session:
            (verdict,) = shards.save(session, [progress], lease=self.keeper.lease)
        if verdict is not AfterSave.LOST:
            self.meters.saved(progress.results)
        if run.unsaved:
            self.feed.tell(run.held.batch_id, Saved())
        run.unsaved.clear()
        return verdict


@dataclass(slots=True, eq=False)
class _Run:
    """State of one run of a shard."""

    held: Claim
    feed: Feed
    meters: RunMeters
    known: Lookup
    unsaved: list[NewResult] = field(default_factory=list)
    finished_tokens: int = 0
    began_at: float = field(default_factory=time.monotonic)
    must_save: Event = field(default_factory=Event)
    parts: Parts = field(init=False)
    work: Submission[Outcome] = field(init=False)

    @property
    def running_tokens(self) -> int:
        """The tokens generated so far by unfinished requests."""
        return max(0, self.work.num_output_tokens - self.finished_tokens)

    def submit(self, engine: EngineThread) -> None:
        """Submit the shard's requests to the engine, except those that the cache answered."""
        answered = {answer.request_id for answer in self.known.answers}
        to_run = [request for request in self.held.requests if request.id not in answered]
        self.unsaved += self.known.answers
        self.parts = Parts(to_run)
        share = Share(self.held.tenant_id, self.held.weight)
        asked: list[Request] = []
        for request in to_run:
            try:
                asked += to_engine(request, self.held.batch_id, share=share, priority=URGENT)
            except InvalidRequestError as error:
                self.unsaved.append(failed(request, str(error)))
        self.work = engine.submit(asked, self._tell)

    def collect(self, seconds: float) -> bool:
        """Collect outcomes for at most `seconds`, or until `must_save`; return whether all have arrived."""
        deadline = time.monotonic() + seconds
        while not self.work.is_done and not self.must_save.is_set():
            wait = deadline - time.monotonic()
            if wait <= 0:
                break
            self._keep(self.work.take(wait))
        self.must_save.clear()
        return self.work.is_done

    def _tell(self, delta: Delta) -> None:
        if delta.finish_reason is FinishReason.CANCELLED:  # handed back: the reader's stream goes on
            return
        request_id, part = cast("PartId", delta.id)
        request = self.parts.requests[request_id]
        per_prompt = request.params.num_choices if isinstance(request.params, SamplingParams) else 1
        self.feed.tell(
            self.held.batch_id,
            Told(
                position=request.position,
                index=part * per_prompt + delta.index,
                offset=delta.offset,
                text=storable(delta.text),
                num_tokens=len(delta.token_ids),
                logprobs=None if delta.logprobs is None else to_logprobs(delta.token_ids, delta.logprobs),
                finish_reason=None if delta.finish_reason is None else delta.finish_reason.value,
            ),
        )

    def _keep(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            whole = None if is_cancelled(outcome) else self.parts.add(outcome)
            if whole is not None:
                self.unsaved.append(to_result(*whole, keep=self.known.entries.get(whole[0].id)))
                self.meters.took(time.monotonic() - self.began_at, whole[0].num_copies)
                self.finished_tokens += num_output_tokens(whole[1])
