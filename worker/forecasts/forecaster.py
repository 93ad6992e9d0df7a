"""Forecasts new and live batches of one model from Step costs, output lengths and the work ahead."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from statistics import fmean
from threading import Lock
from typing import Any

from sqlalchemy.orm import Session

from worker.contract.access import DEFAULT_TENANT
from worker.contract.messages import GPU_QUEUE
from worker.forecasts import simulation
from worker.forecasts.calibration import Calibration, calibrate
from worker.forecasts.lengths import LearnedLengths
from worker.forecasts.ranges import Range
from worker.forecasts.simulation import Job, Machine
from worker.forecasts.work import BatchWork, of_live, of_requests, of_the_rest
from worker.store.batches.batch_views import BatchView
from worker.store.batches.batches import NewBatch
from worker.store.database.session import Store
from worker.store.watching import outlook, workers
from worker.store.watching.outlook import Backlog
from worker.values.step_costs import StepCosts

# Live batches that are forecast one by one.
MAX_LIVE = 100
# Seconds between a worker's saves.
SAVED_EVERY = 1.5
MAX_LEARNED = 256  # tenants whose lengths are kept
# A shard gets as many requests as take a worker so long. It costs 25 to 100 ms of processor time in all, and
# its requests run on one worker: docs/decisions/0051.
SHARD_SECONDS = 4.0
# Steps of other workers and of fuller engines may cost so much less, or more.
COST_DOUBT = 1.25


@dataclass(frozen=True, slots=True)
class Forecast:
    """The time that a batch takes."""

    seconds: Range
    waiting_seconds: float  # the part of the expected seconds that other work causes
    by_costs: float  # the expected seconds by Step costs alone, before calibration
    shard_size: int  # how many requests a full shard of it has


@dataclass(frozen=True, slots=True)
class Forecaster:
    """Forecasts batches. `machine=None`: nothing was measured yet, or no worker is alive."""

    tenant: str
    machine: Machine | None
    num_workers: int
    lengths: LearnedLengths
    calibration: Calibration
    live: Sequence[BatchView]
    unseen: Backlog | None  # the work of live batches that are not in `live`
    weights: Mapping[str, float]
    shard_sizes: tuple[int, int]  # the fewest and the most requests of a full shard

    def work_of(self, view: BatchView) -> BatchWork:
        """Return the work left of a live batch; without a known worker, assume all of it to run at once."""
        num_rows = view.num_requests if self.machine is None else self.machine.most_running
        return of_live(view, self.lengths, num_rows=num_rows)

    def num_requests_ahead(self, *, priority: int) -> int:
        """Return the number of requests left in live batches of at least this priority."""
        left = sum(view.num_requests - view.num_settled for view in self.live if view.priority >= priority)
        return left + (0 if self.unseen is None else self.unseen.num_requests)

    def of_new(self, batch: NewBatch) -> Forecast | None:
        """Return the forecast of a new batch whose requests all run; None if nothing was measured yet."""
        if self.machine is None:
            return None
        own = of_requests(batch, batch.requests, self.lengths)
        return self._forecast(self.machine, own, self.live, tenant=self.tenant, priority=batch.priority)

    def left_of(self, view: BatchView) -> Range | None:
        """Return the seconds until a live batch ends; None if nothing is known of its workers."""
        machine = self.machine
        if machine is None:
            return None
        work = self.work_of(view)
        others = [other for other in self.live if other.id != view.id]
        # A running batch is assumed to have half of its overhead behind it.
        overhead = 0.5 if view.num_running_shards else 1.0
        found = self._forecast(
            machine, work, others, tenant=view.tenant_id, priority=view.priority, overhead=overhead
        ).seconds
        if not view.num_running_shards:
            return found
        # The batch's saved state is between 0 and SAVED_EVERY seconds old, and half of that on average.
        low, expected = (
            max(one - age, one / 2)
            for one, age in ((found.low, SAVED_EVERY), (found.expected, SAVED_EVERY / 2))
        )
        return Range(low, expected, found.high)

    def device_seconds(self, own: BatchWork) -> Range | None:
        """Return the seconds of Steps that this work takes alone; None if nothing was measured."""
        if self.machine is None:
            return None
        alone = replace(self, calibration=replace(self.calibration, overhead=0.0))
        machine = replace(self.machine, num_workers=1)
        return alone._forecast(machine, own, (), tenant=self.tenant, priority=0).seconds  # noqa: SLF001

    def worker_seconds(self, work: BatchWork) -> Range | None:
        """Return the worker's seconds that this work takes in full Steps; None: nothing was measured."""
        if self.machine is None:
            return None
        costs, outputs = self.machine.costs, work.output_tokens

        def seconds(tokens: float) -> float:
            longer = tokens / outputs.expected if outputs.expected else 1.0
            each = costs.step / self.num_rows + costs.row
            return (
                each * max(tokens, work.num_requests)
                + costs.token * work.prompt_tokens
                + costs.context * work.context * longer
            )

        expected = seconds(outputs.expected)
        if expected <= 0:
            return Range(0.0, 0.0, 0.0)
        found = Range(expected, expected, expected).widened(1 / COST_DOUBT, COST_DOUBT)
        return found.widened(seconds(outputs.low) / expected, seconds(outputs.high) / expected)

    def shard_size_of(self, work: BatchWork, *, is_whole: bool = True) -> int:
        """Return how many requests a full shard of this work has: a worker runs it in SHARD_SECONDS.

        Of a whole batch, every live worker gets as many shards as the others, where that needs none below the
        fewest requests.
        """
        fewest, most = self.shard_sizes
        seconds = self.worker_seconds(work)
        if self.machine is None or seconds is None or seconds.expected <= 0:
            return fewest
        size = round(min(max(fewest, work.num_requests * SHARD_SECONDS / seconds.expected), most))
        num_workers = self.machine.num_workers
        if num_workers == 1 or not is_whole:
            return size
        each = math.ceil(work.num_requests / size / num_workers)
        return max(fewest, math.ceil(work.num_requests / (each * num_workers)))

    def tail_seconds(self, work: BatchWork) -> float:
        """Return the seconds that the longest output adds, however many workers share the work.

        As in the simulation: half of its time if not all requests run at once, else what it takes longer than
        the work in full Steps.
        """
        seconds = self.worker_seconds(work)
        if self.machine is None or seconds is None:
            return 0.0
        rows = min(float(self.num_rows), work.num_requests)
        longest = work.longest * (self.machine.costs.step + self.machine.costs.row * rows)
        return longest / 2 if work.num_requests > self.num_rows else max(0.0, longest - seconds.expected)

    @property
    def num_rows(self) -> int:
        """The number of Sequences in a full Step of a worker."""
        return 1 if self.machine is None else max(1, self.machine.num_rows)

    def _forecast(
        self,
        machine: Machine,
        own: BatchWork,
        live: Sequence[BatchView],
        *,
        tenant: str,
        priority: int,
        overhead: float = 1.0,
    ) -> Forecast:
        others = self._others(live, tenant=tenant, priority=priority) if live else []
        shard_size = self.shard_size_of(own)

        def seconds(on: Machine, tokens: float, beside: Sequence[Job]) -> float:
            workers_used = min(on.num_workers, max(1.0, own.num_requests / shard_size))
            job = Job.of(own, tokens, tenant=tenant, priority=priority, num_workers=workers_used)
            return simulation.seconds(job, [replace(other) for other in beside], on, self.weights)

        outputs = own.output_tokens
        expected = seconds(machine, outputs.expected, others)
        alone = seconds(machine, outputs.expected, ())
        forecast = self.calibration.apply(expected, overhead=overhead)
        doubts = [(seconds(machine, outputs.low, others), seconds(machine, outputs.high, others))]
        if machine.costs.max_rows < min(own.num_requests, machine.num_rows):
            flat, proportional = machine.flat(), machine.proportional()
            doubts.append(
                (seconds(flat, outputs.expected, others), seconds(proportional, outputs.expected, others))
            )
        for low, high in doubts if expected > 0 else ():
            forecast = forecast.widened(low / expected, high / expected)
        waiting = self.calibration.factor * max(0.0, expected - alone)
        return Forecast(forecast, waiting, expected, shard_size)

    def _others(self, live: Sequence[BatchView], *, tenant: str, priority: int) -> list[Job]:
        assert self.machine is not None  # noqa: S101 - the callers have checked it
        num_workers = self.machine.num_workers
        others = []
        for view in live:
            if view.tenant_id == tenant and view.priority < priority:
                continue
            work = self.work_of(view)
            others.append(
                Job.of(
                    work,
                    work.output_tokens.expected,
                    tenant=view.tenant_id,
                    priority=view.priority,
                    num_workers=min(num_workers, max(1.0, work.num_requests / self.shard_size_of(work))),
                )
            )
        if self.unseen is not None:
            work = of_the_rest(self.unseen, self.lengths)
            others.append(
                Job.of(
                    work,
                    work.output_tokens.expected,
                    tenant=tenant,
                    priority=priority,
                    num_batches=self.unseen.num_batches,
                    num_workers=num_workers,
                )
            )
        return others


@dataclass(slots=True)
class Learned:
    """Caches learned lengths and calibrations, which stay the same until another batch ends."""

    _lock: Lock = field(default_factory=Lock)
    _until: dict[str | None, datetime | None] = field(default_factory=dict)  # by model, as all of these
    _lengths: dict[str | None, dict[str | None, LearnedLengths]] = field(default_factory=dict)  # by tenant
    _calibrations: dict[str | None, Calibration] = field(default_factory=dict)

    def read(self, own: Store, everybody: Session, model: str | None) -> tuple[LearnedLengths, Calibration]:
        """Return output lengths by the tenant's batches, and the calibration by all tenants' batches."""
        until = outlook.last_end(everybody, model=model)
        with self._lock:
            known = self._lengths.setdefault(model, {})
            if until != self._until.get(model) or len(known) > MAX_LEARNED:
                self._until[model] = until
                self._calibrations.pop(model, None)
                self._lengths[model] = known = {}
            lengths, calibration = known.get(own.tenant_id), self._calibrations.get(model)
        if lengths is None:
            with own.look() as session:
                lengths = LearnedLengths(outlook.recent_outputs(session, model=model))
        if calibration is None:
            calibration = calibrate(outlook.forecast_outcomes(everybody, model=model))
        with self._lock:
            if until == self._until.get(model):
                known[own.tenant_id], self._calibrations[model] = lengths, calibration
        return lengths, calibration


def read_forecaster(
    own: Store,
    everybody: Store,
    learned: Learned,
    *,
    model: str | None,
    shard_sizes: tuple[int, int],
    max_live: int = MAX_LIVE,
) -> Forecaster:
    """Return a Forecaster of a model, None: of all models. `own` shows one tenant's rows, for the lengths.

    `max_live` batches are seen one by one; the others count as one sum.
    """
    with everybody.look() as session:
        lengths, calibration = learned.read(own, session, model)
        live = outlook.live_batches(session, limit=max_live, model=model)
        unseen = _without(outlook.backlog(session, model=model), live) if len(live) == max_live else None
        infos = workers.infos(session, GPU_QUEUE, model=model)
        weights = outlook.tenant_weights(session)
    return Forecaster(
        tenant=own.tenant_id or DEFAULT_TENANT,
        machine=machine_of(infos),
        num_workers=len(infos),
        lengths=lengths,
        calibration=calibration,
        live=live,
        unseen=unseen,
        weights=weights,
        shard_sizes=shard_sizes,
    )


def _without(backlog: Backlog, seen: Sequence[BatchView]) -> Backlog | None:
    """Return the backlog without the batches in `seen`; None if there are no others."""
    if backlog.num_batches <= len(seen):
        return None
    prompt_tokens = sum(view.num_prompt_tokens - view.input_tokens for view in seen)
    most = sum(view.max_output_tokens - view.settled_max_tokens - view.running_tokens for view in seen)
    return Backlog(
        num_batches=backlog.num_batches - len(seen),
        num_requests=max(
            0, backlog.num_requests - sum(view.num_requests - view.num_settled for view in seen)
        ),
        prompt_tokens=max(0, backlog.prompt_tokens - prompt_tokens),
        max_output_tokens=max(0, backlog.max_output_tokens - most),
    )


def machine_of(infos: Sequence[Mapping[str, Any]]) -> Machine | None:
    """Return the average worker; workers that have not measured yet are assumed to be like it."""
    found = [(info, known) for info in infos if (known := StepCosts.of_worker(info)) is not None]
    if not found:
        return None
    costs = [known for _, known in found]
    return Machine(
        costs=StepCosts(
            step=fmean(one.step for one in costs),
            row=fmean(one.row for one in costs),
            token=fmean(one.token for one in costs),
            context=fmean(one.context for one in costs),
            max_rows=max(one.max_rows for one in costs),
        ),
        num_rows=round(fmean(info["max_num_sequences"] for info, _ in found)),
        max_tokens=round(fmean(info["max_tokens_per_step"] for info, _ in found)),
        num_workers=len(infos),
        # A worker of an older release does not report them.
        steps_at_once=fmean(info.get("steps_at_once", 1) for info, _ in found),
    )
