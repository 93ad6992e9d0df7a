"""Run one shard: claim, submit, save results as they come, finish. Must not know Celery.

Several runners, a thread each, feed one engine, so it does not run empty when a shard ends.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from threading import Event, Lock

from worker.engine.engine_thread import EngineThread
from worker.engine.requests.generation import Completion
from worker.engine.requests.share import Share
from worker.runs.lease_keeper import LeaseKeeper
from worker.runs.response_cache import Lookup, ResponseCache
from worker.runs.run import Ending, Run, save_now
from worker.runs.run_meters import RunMeters
from worker.runs.shard_saver import ShardSaver
from worker.runs.solo import Solo
from worker.runs.tail import Tail
from worker.runs.tool_loops import LoopTools
from worker.runs.translation import can_resume
from worker.store.database.session import DATABASE_AWAY, Store
from worker.store.requests.requests import ShardRequest
from worker.store.shards import backups, counting, fair_share, fair_slots, poison, shards
from worker.store.shards.backups import Straggler
from worker.store.shards.fair_share import ChosenShard
from worker.store.shards.shards import AfterSave, Claim, Progress
from worker.telemetry import work
from worker.values.results import PartialOutput

logger = logging.getLogger(__name__)

# Other workers may claim the shard that this one chose; after this many tries in a row a run gives up.
CLAIM_ATTEMPTS = 16


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
    tools: LoopTools | None = None
    tail: Tail | None = None  # None: it takes every shard that it can
    checkpoint_tokens: int = 256  # a partial output is saved each time it has grown by so many
    _solo: Solo = field(default_factory=Solo)
    _runs: set[Run] = field(default_factory=set)  # in progress
    _choosing: Lock = field(default_factory=Lock)
    _chosen: set[int] = field(default_factory=set)  # shards that runs here have chosen, until they end
    _orders: Iterator[bool] = field(default_factory=lambda: cycle((True, False)))  # values of `fewest`

    @property
    def num_running(self) -> int:
        """The number of shards that run now."""
        return len(self._runs)

    def run(self, shard_id: int) -> Ending:
        """Run the shard whose turn it is, as one ticket allows, to its end or until it must stop."""
        if self.tail is not None and self.tail.leaves_next():
            return Ending.NOTHING_TO_DO
        tried: set[int] = set()
        avoided = set() if self.tail is None else self.tail.avoided()
        while len(tried) < CLAIM_ATTEMPTS and not self.draining.is_set():
            # The ticket may name another shard than the one whose turn it is.
            with self._choose(tried | avoided, otherwise=shard_id) as chosen:
                if chosen.shard_id in tried | avoided:
                    break
                tried.add(chosen.shard_id)
                ending = self._run_chosen(chosen)
            if ending is not Ending.NOTHING_TO_DO:
                return ending
        return Ending.NOTHING_TO_DO

    @contextmanager
    def _choose(self, tried: AbstractSet[int], *, otherwise: int) -> Iterator[ChosenShard]:
        """Choose the shard whose turn it is; during the block no other run of this process chooses it."""
        model = self.keeper.serves
        with self._choosing:
            with self.store.transaction() as session:
                but, fewest = tried | self._chosen, next(self._orders)
                chosen = fair_share.first(session, but=but, fewest=fewest, model=model)
                if chosen is None:
                    chosen = ChosenShard(otherwise, poison.is_suspect(session, otherwise, model=model))
            self._chosen.add(chosen.shard_id)
        try:
            yield chosen
        finally:
            self._chosen.discard(chosen.shard_id)

    def run_this(self, shard_id: int) -> Ending:
        """Run this shard and no other, if it is ready. A suspect also gives way to what others have left."""
        if self.tail is not None and shard_id in self.tail.avoided():
            return Ending.NOTHING_TO_DO
        with self.store.look() as session:
            is_suspect = poison.is_suspect(session, shard_id, model=self.keeper.serves)
        return self._run_chosen(ChosenShard(shard_id, is_suspect))

    def _run_chosen(self, chosen: ChosenShard) -> Ending:
        give_up = self._gives_way if chosen.is_suspect else self.draining.is_set
        with self._solo.enter(alone=chosen.is_suspect, give_up=give_up) as is_in:
            return self._claim_and_run(chosen.shard_id) if is_in else Ending.NOTHING_TO_DO

    def _gives_way(self) -> bool:
        """Return whether a suspect must not start now: what was begun would wait for several in a row."""
        if self.draining.is_set():
            return True
        with self.store.look() as session:
            return bool(fair_slots.begun(session, limit=1, model=self.keeper.serves))

    def batch_changed(self, batch_id: str) -> None:
        """Make the runs of this batch save now; the save's answer says what has changed."""
        save_now(self._runs.copy(), batch_id)

    def back_up(self) -> Ending:
        """Run the last requests of another worker's shard too, if this one is idle and ends them sooner.

        Call it as `Tail.to_back_up` says.
        """
        late = None
        if self.tail is not None and not self._runs and not self.draining.is_set():
            late = self.tail.to_back_up()
        if late is None:
            return Ending.NOTHING_TO_DO
        with self._solo.enter(alone=False, give_up=self.draining.is_set) as is_in:
            return self._back_up(late) if is_in else Ending.NOTHING_TO_DO

    def _back_up(self, late: Straggler) -> Ending:
        worker, model = self.keeper.worker, self.keeper.model
        with self.store.transaction() as session:
            held = backups.claim(session, late.shard_id, late.fence, worker=worker, model=model)
        if held is None:
            return Ending.NOTHING_TO_DO
        with work(batch=held.batch_id, shard=held.shard_id):
            try:
                return self._run(held)
            except Exception:  # the holder runs on
                logger.exception("the backup of shard %s", held.shard_id)
                return Ending.LOST

    def _claim_and_run(self, shard_id: int) -> Ending:
        with self.keeper.hold(shard_id) as held:
            return Ending.NOTHING_TO_DO if held is None else self._run(held)

    def _run(self, held: Claim) -> Ending:
        lookup = Lookup() if self.cache is None else self.cache.look_up(held)
        run = Run(held, lookup, self.meters, self.tools)
        known = {request.id: self._known_tokens(request) for request in held.requests if can_resume(request)}
        share = Share(held.tenant_id, held.weight, held.priority, held.batch_id)
        run.submit(self.engine, share, job=held.batch_id, known=known)
        self._runs.add(run)
        try:
            return self._follow(run)
        finally:
            self._runs.discard(run)
            run.close()

    def _known_tokens(self, request: ShardRequest) -> Sequence[int]:
        kept = request.partial_output
        return () if kept is None or kept.model_id != self.keeper.model_id else kept.token_ids

    def _follow(self, run: Run) -> Ending:
        while True:
            is_done = run.collect(self.save_seconds)
            must_leave = run.must_leave(self.draining, 0 if run.held.is_backup else self.drain_seconds)
            try:
                saved = self._save(run, is_last=is_done and not run.unfinished)
                if saved is AfterSave.LOST:
                    return Ending.LOST
                if saved is AfterSave.DONE or (is_done and not run.unfinished):
                    return run.ending
                if is_done or run.is_stuck:
                    return run.ending if run.held.is_backup else self._hand_back(run)
                self._obey(run, saved, must_leave=must_leave)
                run.go_on()
            except DATABASE_AWAY as error:
                # Keep the results until Postgres is back, or until another worker claims the shard.
                logger.warning("shard %s is not saved yet: %s", run.held.shard_id, str(error).splitlines()[0])
                if must_leave:
                    return Ending.LOST
                time.sleep(self.save_seconds)

    def _obey(self, run: Run, saved: AfterSave, *, must_leave: bool) -> None:
        if saved is AfterSave.STOP:
            run.cut(Ending.STOPPED)
        elif saved is AfterSave.PAUSE or must_leave:
            run.cut(Ending.HANDED_BACK)
        elif saved is AfterSave.CANCEL_SOME:
            run.cancel_some(self._unwanted(run.held))
        elif self._gives_back(run):
            run.cut(Ending.HANDED_BACK)

    def _gives_back(self, run: Run) -> bool:
        """Return whether other workers, which have nothing to do, end a shard sooner."""
        held = run.held
        # What several workers have had may be what they died of.
        if self.tail is None or run.cut_at is not None or held.attempt > 1:
            return False
        return self.tail.gives_back(held.shard_id, held.batch_id, num_left=run.num_left)

    def _save(self, run: Run, *, is_last: bool) -> AfterSave:
        is_backup = run.held.is_backup
        fresh = {} if is_last or is_backup else self._fresh_checkpoints(run)
        turns = dict(run.loops.unsaved)
        progress = Progress(run.held, tuple(run.unsaved), run.running_tokens, is_last, fresh, turns)
        lease = None if is_backup else self.keeper.lease
        saved = self.saver.save(progress, lease=lease, most=self.num_running)
        run.unsaved.clear()
        run.loops.unsaved.clear()
        run.checkpoints |= {request_id: len(one.token_ids) for request_id, one in fresh.items()}
        return saved

    def _fresh_checkpoints(self, run: Run) -> dict[int, PartialOutput]:
        """Return the partial outputs that have grown enough since they were last saved."""
        fresh = {}
        for request_id, count in run.checkpoints.items():
            (part,) = run.parts.ids([request_id])
            found = self.engine.partial_output(run.work, part, least=count + self.checkpoint_tokens)
            if found is not None:
                fresh[request_id] = replace(found, model_id=self.keeper.model_id)
        return fresh

    def _unwanted(self, held: Claim) -> list[int]:
        with self.store.transaction() as session:
            return backups.unwanted(session, held)

    def _hand_back(self, run: Run) -> Ending:
        unfinished = {
            request_id: PartialOutput(one.token_ids, one.text, self.keeper.model_id, one.started_at)
            for request_id, one in run.unfinished.items()
            if isinstance(one, Completion) and can_resume(run.parts.requests[request_id])
        }
        with self.store.transaction() as session:
            shards.release(session, run.held, unfinished)
        counting.follow(self.store, run.held.batch_id)
        return run.ending
