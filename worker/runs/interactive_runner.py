"""Run one interactive shard: claim, submit as urgent, stream outputs, save at once. Must not know Celery."""

import logging
import time
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Protocol, cast

from worker.contract.feed import Message, Saved
from worker.engine.engine_thread import EngineThread
from worker.engine.requests.share import Share
from worker.runs.lease_keeper import LeaseKeeper
from worker.runs.response_cache import Lookup, ResponseCache
from worker.runs.run import Ending, Run, save_now
from worker.runs.run_meters import RunMeters
from worker.runs.translation import PartId
from worker.store.database.session import DATABASE_AWAY, Store
from worker.store.shards import counting, shards
from worker.store.shards.shards import AfterSave, Claim, Progress
from worker.values.delta import Delta
from worker.values.outcomes import FinishReason
from worker.values.results import storable
from worker.values.sampling import SamplingParams

logger = logging.getLogger(__name__)

URGENT = 1


class Publisher(Protocol):
    """Takes messages about interactive work."""

    def tell(self, batch_id: str, message: Message) -> None:
        """Send a message to the listeners of a batch."""


@dataclass(frozen=True, slots=True)
class InteractiveRunner:
    """Runs interactive shards on one engine, for one worker process."""

    store: Store
    engine: EngineThread
    feed: Publisher
    keeper: LeaseKeeper
    save_seconds: float
    drain_seconds: float
    draining: Event
    meters: RunMeters = field(default_factory=RunMeters)
    cache: ResponseCache | None = None
    _runs: set[Run] = field(default_factory=set)  # in progress

    def run(self, shard_id: int) -> Ending:
        """Run a shard to its end, if it is ready and nobody else holds it."""
        if self.draining.is_set():
            return Ending.NOTHING_TO_DO
        with self.keeper.hold(shard_id) as held:
            return Ending.NOTHING_TO_DO if held is None else self._run(held)

    def _run(self, held: Claim) -> Ending:
        lookup = Lookup() if self.cache is None else self.cache.look_up(held)
        run = Run(held, lookup, self.meters)
        share = Share(held.tenant_id, held.weight)
        run.submit(self.engine, share, priority=URGENT, on_delta=lambda delta: self._tell(run, delta))
        self._runs.add(run)
        try:
            return self._follow(run)
        finally:
            self._runs.discard(run)
            run.close()

    def batch_changed(self, batch_id: str) -> None:
        """Make the runs of this batch save now; the save's answer says what has changed."""
        save_now(self._runs.copy(), batch_id)

    def _follow(self, run: Run) -> Ending:
        while True:
            is_done = run.collect(self.save_seconds)
            must_leave = run.must_leave(self.draining, self.drain_seconds)
            try:
                verdict = self._save(run, is_last=is_done)
                if verdict is AfterSave.LOST:
                    return Ending.LOST
                if is_done:
                    return Ending.FINISHED
                if verdict is not AfterSave.CONTINUE or must_leave:
                    with self.store.transaction() as session:
                        shards.release(session, run.held)
                    return Ending.HANDED_BACK
            except DATABASE_AWAY as error:
                logger.warning("shard %s is not saved yet: %s", run.held.shard_id, str(error).splitlines()[0])
                if must_leave:
                    return Ending.LOST
                time.sleep(self.save_seconds)

    def _save(self, run: Run, *, is_last: bool) -> AfterSave:
        progress = Progress(run.held, tuple(run.unsaved), run.running_tokens, is_last)
        with self.store.transaction() as session:
            (verdict,) = shards.save(session, [progress], lease=self.keeper.lease)
        counting.follow(self.store, run.held.batch_id)
        if run.unsaved:
            self.feed.tell(run.held.batch_id, Saved())
        run.unsaved.clear()
        return verdict

    def _tell(self, run: Run, delta: Delta) -> None:
        """Publish a Delta of the engine by its place in the batch."""
        if delta.finish_reason is FinishReason.CANCELLED:  # handed back: the reader's stream goes on
            return
        request_id, part = cast("PartId", delta.id)
        request = run.parts.requests[request_id]
        per_prompt = request.params.num_choices if isinstance(request.params, SamplingParams) else 1
        index = part * per_prompt + delta.index
        placed = replace(delta, id=request.position, index=index, text=storable(delta.text))
        self.feed.tell(run.held.batch_id, placed)
