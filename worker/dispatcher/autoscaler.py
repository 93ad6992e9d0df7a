"""Decide how many gpu workers each model needs, and publish it. Starts and stops nobody.

Any number of dispatchers may decide: each decision is made from the rows and replaces the one before.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from worker.contract.processes import CAPACITY, SPOT
from worker.dispatcher.deletion_costs import DeletionCosts
from worker.forecasts.forecaster import Learned, machine_of, read_forecaster
from worker.forecasts.work import of_the_rest
from worker.scaling.policy import DueWork, ScalingTimes, Wanted, WorkerGroup, decide
from worker.settings import Settings
from worker.store.batches.batch_views import BatchView
from worker.store.database.session import Store
from worker.store.watching import queueing, scaling
from worker.store.watching.scaling import GpuWorker, WaitingModel, WantedWorkers
from worker.values.step_costs import STEP_COSTS

# Batches of one model that are planned one by one; the others count as one sum.
MAX_LIVE = 1000
# From a decision until the one who starts workers has asked for it and the next decision is made.
EVERY_SECONDS = 60.0
# That a worker stays without work: longer than it takes to claim the next shard.
HOLD_SECONDS = 60.0
# A cold start that took longer waited for a machine that was not to be had.
LONGEST_COLD_START = 3600.0
# A quicker start moves the measured one so far; a slower one counts at once.
FORGET = 0.2
# What is kept of a worker's info for the time when none is alive.
ENGINE_KEYS = (STEP_COSTS, "max_num_sequences", "max_tokens_per_step")


def withdraw(store: Store) -> None:
    """Delete the decisions of a time when workers were scaled: nobody keeps them current."""
    with store.transaction() as session:
        scaling.withdraw(session)


@dataclass(frozen=True, slots=True)
class _Backlog:
    """The work of one model."""

    due: Sequence[DueWork]
    num_requests: float = 0.0
    num_tokens: float = 0.0
    is_measured: bool = True  # the Costs of Steps are known


@dataclass(slots=True)
class Autoscaler:
    """Decides from the rows. Remembers only since when each worker is idle."""

    store: Store
    config: Settings
    most: int
    deletion_costs: DeletionCosts = field(default_factory=DeletionCosts)
    _learned: Learned = field(default_factory=Learned)
    _idle_since: dict[str, float] = field(default_factory=dict)

    def decide(self) -> list[WantedWorkers]:
        """Decide for every model that has work, workers or an earlier decision; publish and return it."""
        with self.store.look() as session:
            now = queueing.read_clock(session)
            waiting = {one.fingerprint: one for one in scaling.waiting_models(session)}
            before = {one.model_fingerprint: one for one in scaling.published(session)}
            everybody = scaling.gpu_workers(session)
        self._note_idle(everybody)
        self.deletion_costs.write({one.name: self._idle_for(one) < HOLD_SECONDS for one in everybody})
        known = {fingerprint: one.model_name for fingerprint, one in before.items()}
        for worker in everybody:
            if "model_fingerprint" in worker.info:
                known[worker.info["model_fingerprint"]] = worker.info["name"]
        known |= {fingerprint: one.name for fingerprint, one in waiting.items()}
        found = [
            self._decide(now, fingerprint, name, waiting.get(fingerprint), before.get(fingerprint))
            for fingerprint, name in sorted(known.items())
        ]
        with self.store.transaction() as session:
            scaling.publish(session, found)
        return found

    def _decide(
        self,
        now: datetime,
        fingerprint: str,
        name: str,
        waiting: WaitingModel | None,
        before: WantedWorkers | None,
    ) -> WantedWorkers:
        with self.store.look() as session:
            workers = scaling.gpu_workers(session, model=fingerprint)
        told = [worker.info for worker in workers if worker.info.get(STEP_COSTS) is not None]
        engine = None if before is None else before.engine
        if told:
            engine = {key: told[-1][key] for key in ENGINE_KEYS}
        backlog = _Backlog(()) if waiting is None else self._backlog(now, fingerprint, engine)
        cold_start = None if before is None else before.cold_start_seconds
        num_ready = sum(worker.is_ready for worker in workers)
        if before is not None and before.short_since is not None and num_ready >= before.wanted > 0:
            took = min((now - before.short_since).total_seconds(), LONGEST_COLD_START)
            cold_start = max(took, took if cold_start is None else cold_start + FORGET * (took - cold_start))
        times = ScalingTimes(cold_start or self.config.cold_start_seconds, EVERY_SECONDS, HOLD_SECONDS)
        wanted = self._wanted(now, times, backlog, workers, waiting, before)
        total = wanted.on_demand + wanted.spot
        short_since = None if before is None else before.short_since
        return WantedWorkers(
            model_fingerprint=fingerprint,
            model_name=name,
            wanted=total,
            on_demand=wanted.on_demand,
            spot=wanted.spot,
            num_ready=num_ready,
            num_loading=len(workers) - num_ready,
            num_requests=round(backlog.num_requests),
            num_tokens=round(backlog.num_tokens),
            work_seconds=sum(one.seconds for one in backlog.due),
            due_at=min((now + timedelta(seconds=one.due_seconds) for one in backlog.due), default=None),
            engine=engine,
            cold_start_seconds=cold_start,
            short_since=(short_since or now) if total > num_ready else None,
            decided_at=now,
        )

    def _wanted(
        self,
        now: datetime,
        times: ScalingTimes,
        backlog: _Backlog,
        workers: Sequence[GpuWorker],
        waiting: WaitingModel | None,
        before: WantedWorkers | None,
    ) -> Wanted:
        # A worker that was wanted may be on its way, with no row yet.
        asked_at = None if before is None else before.short_since
        asked_for = 0.0 if asked_at is None else (now - asked_at).total_seconds()
        groups = [
            self._group(
                [worker for worker in workers if (worker.info.get(CAPACITY) == SPOT) == is_spot],
                times,
                asked=0 if before is None else before.spot if is_spot else before.on_demand,
                asked_for=asked_for,
                most=self.config.max_spot_workers if is_spot else self.most,
            )
            for is_spot in (False, True)
        ]
        least = self.config.min_workers
        # What is due sooner than a cold start is worth one try: the start may be quicker.
        is_urgent = any(one.limit <= times.cold_start for one in backlog.due)
        if waiting is not None and (waiting.is_interactive or is_urgent or not backlog.is_measured):
            least = max(least, 1)
        return decide(backlog.due, times, groups[0], groups[1], least=least)

    def _group(
        self, workers: Sequence[GpuWorker], times: ScalingTimes, *, asked: int, asked_for: float, most: int
    ) -> WorkerGroup:
        ready = [max(0.0, times.cold_start - one.age_seconds) for one in workers if not one.is_ready]
        if asked_for < 2 * times.cold_start:  # else nobody is coming
            ready += [max(0.0, times.cold_start - asked_for)] * max(0, asked - len(workers))
        return WorkerGroup(
            num_busy=sum(one.is_ready and one.is_busy for one in workers),
            idle_seconds=tuple(self._idle_for(one) for one in workers if one.is_ready and not one.is_busy),
            ready_seconds=tuple(ready),
            most=most,
        )

    def _note_idle(self, workers: Sequence[GpuWorker]) -> None:
        clock = time.monotonic()
        idle = [one.name for one in workers if one.is_ready and not one.is_busy]
        self._idle_since = {name: self._idle_since.get(name, clock) for name in idle}

    def _idle_for(self, worker: GpuWorker) -> float:
        clock = time.monotonic()
        return clock - self._idle_since.get(worker.name, clock)

    def _backlog(self, now: datetime, fingerprint: str, engine: dict[str, object] | None) -> _Backlog:
        forecaster = read_forecaster(
            self.store,
            self.store,
            self._learned,
            model=fingerprint,
            shard_sizes=self.config.shard_sizes,
            max_live=MAX_LIVE,
        )
        if forecaster.machine is None and engine is not None:
            forecaster = replace(forecaster, machine=machine_of([engine]))
        due, num_requests, num_tokens = [], 0.0, 0.0
        for view in forecaster.live:
            work = forecaster.work_of(view)
            num_requests += work.num_requests
            num_tokens += work.prompt_tokens + work.output_tokens.expected
            seconds = forecaster.worker_seconds(work)
            if seconds is not None:
                tail = forecaster.tail_seconds(work)
                due.append(DueWork(self._due_seconds(now, view), seconds.high, tail))
        if forecaster.unseen is not None:
            work = of_the_rest(forecaster.unseen, forecaster.lengths)
            num_requests += work.num_requests
            num_tokens += work.prompt_tokens + work.output_tokens.expected
            seconds = forecaster.worker_seconds(work)
            if seconds is not None:
                due.append(DueWork(self.config.target_seconds, seconds.high))
        return _Backlog(due, num_requests, num_tokens, is_measured=forecaster.machine is not None)

    def _due_seconds(self, now: datetime, view: BatchView) -> float:
        """Return the seconds until a batch must have ended, or should have if it has no deadline."""
        if view.expires_at is not None:
            return (view.expires_at - now).total_seconds()
        begun = view.created_at if view.start_after is None else max(view.created_at, view.start_after)
        left = self.config.target_seconds - (now - begun).total_seconds()
        # It goes on after its target: a new worker is always in time.
        return max(left, 3 * (self.config.cold_start_seconds + EVERY_SECONDS))
