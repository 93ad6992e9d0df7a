"""Runs one shard: claim, submit, save as it goes, finish. Knows no Celery.

Several runners, a thread each, feed one engine, so its batch does not drain at a shard's border.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from threading import Event
from typing import cast

from sqlalchemy.exc import OperationalError

from worker.contract.results import NewResult
from worker.engine.engine_thread import EngineThread
from worker.engine.errors import InvalidRequestError
from worker.engine.step import Outcome, Request
from worker.engine.submission import Submission
from worker.shard_saver import ShardSaver
from worker.store import fair_share, shards
from worker.store.requests import ShardRequest
from worker.store.session import Store
from worker.store.shards import Claim, Progress, Saved
from worker.translation import PartId, failed, is_cancelled, num_output_tokens, to_engine, to_result

logger = logging.getLogger(__name__)

# Results are saved at once when this many wait, else every `save_seconds`.
SAVE_AT = 64
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

    def run(self, shard_id: int) -> Ending:
        """Run a shard to its end, or as far as it may go."""
        if self.draining.is_set():
            return Ending.NOTHING_TO_DO
        held = self._claim(shard_id)
        if held is None:
            return Ending.NOTHING_TO_DO
        parts: list[Request] = []
        unsaved: list[NewResult] = []
        for request in held.requests:
            try:
                parts += to_engine(request, held.batch_id)
            except InvalidRequestError as error:
                unsaved.append(failed(request, str(error)))
        work = self.engine.submit(parts)
        run = _Run(held, work, {request.id: request for request in held.requests}, unsaved)
        try:
            return self._follow(run)
        finally:
            work.cancel()

    def _claim(self, shard_id: int) -> Claim | None:
        """Claim the shard whose turn it is, which need not be the one that the ticket names."""
        tried: list[int] = []
        while shard_id not in tried and len(tried) < CLAIM_ATTEMPTS:
            with self.store.transaction() as session:
                tried.append(fair_share.first(session, tried=tried) or shard_id)
                held = shards.claim(session, tried[-1], worker=self.worker, lease=self.lease)
            if held is not None:
                return held
        return None

    def _follow(self, run: "_Run") -> Ending:
        must_leave_at = float("inf")
        while True:
            is_done = run.collect(self.save_seconds)
            if self.draining.is_set():
                must_leave_at = min(must_leave_at, time.monotonic() + self.drain_seconds)
            is_over_time = time.monotonic() >= must_leave_at
            try:
                saved = self._save(run, is_last=is_done)
                if saved is Saved.LOST:
                    return Ending.LOST
                if is_done:
                    return Ending.FINISHED
                if saved is Saved.STOP:
                    return self._hand_back(run.held, Ending.STOPPED)
                if is_over_time:
                    return self._hand_back(run.held, Ending.HANDED_BACK)
            except OperationalError as error:
                # The results stay with us until Postgres is back, or until somebody claims the shard.
                logger.warning("shard %s is not saved yet: %s", run.held.shard_id, str(error).splitlines()[0])
                if is_over_time:
                    return Ending.LOST
                time.sleep(self.save_seconds)

    def _save(self, run: "_Run", *, is_last: bool) -> Saved:
        # The lease follows the engine: one that has stopped stepping must lose its shards.
        idle_seconds = time.monotonic() - self.engine.last_progress_at
        lease = self.lease if idle_seconds < self.lease.total_seconds() / 2 else None
        progress = Progress(run.held, tuple(run.unsaved), run.running_tokens, is_last)
        saved = self.saver.save(progress, lease=lease)
        run.unsaved.clear()
        return saved

    def _hand_back(self, held: Claim, ending: Ending) -> Ending:
        with self.store.transaction() as session:
            shards.release(session, held)
        return ending


@dataclass(slots=True)
class _Run:
    """What one run of a shard has in hand."""

    held: Claim
    work: Submission[Outcome]
    requests: dict[int, ShardRequest]  # by id
    unsaved: list[NewResult]
    outcomes: dict[int, dict[int, Outcome]] = field(default_factory=dict)  # of unfinished requests, by prompt
    finished_tokens: int = 0

    @property
    def running_tokens(self) -> int:
        """Tokens generated so far by requests that are not finished."""
        return max(0, self.work.num_output_tokens - self.finished_tokens)

    def collect(self, seconds: float) -> bool:
        """Take what finishes until the clock's next multiple of `seconds`; say whether that was the last.

        All runs meet at those times, and save together.
        """
        deadline = (time.monotonic() // seconds + 1) * seconds
        while not self.work.is_done and len(self.unsaved) < SAVE_AT:
            wait = deadline - time.monotonic()
            if wait <= 0:
                break
            self._keep(self.work.take(wait))
        self._keep(self.work.take(0))
        return self.work.is_done

    def _keep(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if is_cancelled(outcome):
                continue
            request_id, index = cast("PartId", outcome.id)  # as we gave it
            request = self.requests[request_id]
            arrived = self.outcomes.setdefault(request_id, {})
            arrived[index] = outcome
            if len(arrived) == len(request.prompts):
                del self.outcomes[request_id]
                in_order = [arrived[index] for index in range(len(arrived))]
                self.unsaved.append(to_result(request, in_order))
                self.finished_tokens += num_output_tokens(in_order)
