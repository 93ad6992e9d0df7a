"""Simulated gpu workers over the real store: they claim shards, wait for the time of the work, and save.

Each has no engine and no model, so a machine holds many of them. What they take is what Postgres carries.
"""

import multiprocessing
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from queue import Empty
from types import SimpleNamespace
from typing import Any, cast

from worker.engine.engine_thread import EngineThread
from worker.runs.lease_keeper import LeaseKeeper
from worker.store.batches import batches
from worker.store.database.session import Store
from worker.store.shards import counting, shards
from worker.store.shards.shards import Claim, Progress
from worker.values.outcomes import FinishReason, Outcome
from worker.values.results import NewResult

LEASE = timedelta(seconds=600)
OUTPUT = "What a request of this length generates, as text. " * 4
MAX_PROCESSES = 4
START_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Way:
    """How simulated workers reach Postgres."""

    url: str
    has_pooler: bool
    connections: int  # at most, of all processes together

    def open(self, num_processes: int, num_workers: int) -> Store:
        """Return the store of one process, which has so many workers, with its connections open."""
        share = min(num_workers, max(1, self.connections // num_processes))
        store = Store(self.url, has_pooler=self.has_pooler, pool_size=share)
        for connection in [store.engine.connect() for _ in range(share)]:
            connection.close()  # back into the pool
        return store


@dataclass(slots=True)
class WorkerTimes:
    """What simulated workers did: results, and seconds of each kind of transaction."""

    num_results: int = 0
    results_s: float = 0.0  # the sum of the workers' own rates
    claims_s: float = 0.0
    claims: list[float] = field(default_factory=list)
    saves: list[float] = field(default_factory=list)
    # For a batch's lock, the query included, where a transaction does wait: most look at the batch instead.
    lock_waits: list[float] = field(default_factory=list)

    def add(self, other: "WorkerTimes") -> None:
        """Add what others did at the same time."""
        self.num_results += other.num_results
        self.results_s += other.results_s
        self.claims_s += other.claims_s
        self.claims += other.claims
        self.saves += other.saves
        self.lock_waits += other.lock_waits


@dataclass(frozen=True, slots=True)
class SimulatedWorker:
    """The work of one simulated worker: in each round it claims some shards, waits, and saves them.

    The times of its first round are left out, unless it has no other: it begins with queries that its
    process has not yet compiled and its connections not yet prepared, as a real worker does once in its life.
    """

    name: str
    rounds: Sequence[Sequence[int]]  # shard ids
    seconds: float  # from the claims of a round to its save

    def run(self, store: Store) -> WorkerTimes:
        """Run every round, beginning at a random moment of the first."""
        done = WorkerTimes()
        engine = cast("EngineThread", SimpleNamespace(last_progress_at=float("inf")))
        keeper = LeaseKeeper(store, engine, worker=self.name, lease=LEASE)
        time.sleep(random.random() * self.seconds)
        began = time.perf_counter()
        for number, shard_ids in enumerate(self.rounds):
            if number == 1:
                done.claims.clear()
                done.saves.clear()
            round_began = time.perf_counter()
            with ExitStack() as holds:
                claimed = [_claim(keeper, shard_id, holds, done) for shard_id in shard_ids]
                time.sleep(max(0.0, round_began + self.seconds - time.perf_counter()))
                _save(store, claimed, done)
        seconds = time.perf_counter() - began
        done.results_s = done.num_results / seconds
        done.claims_s = sum(map(len, self.rounds)) / seconds
        return done


def _claim(keeper: LeaseKeeper, shard_id: int, holds: ExitStack, done: WorkerTimes) -> Claim:
    began = time.perf_counter()
    claimed = holds.enter_context(keeper.hold(shard_id))
    done.claims.append(time.perf_counter() - began)
    if claimed is None:
        raise RuntimeError(f"shard {shard_id} is not there to claim")
    return claimed


def _save(store: Store, claimed: Sequence[Claim], done: WorkerTimes) -> None:
    progress = [
        Progress(one, [_result(request.id) for request in one.requests], running_tokens=0, is_last=True)
        for one in claimed
    ]
    began = time.perf_counter()
    with store.transaction() as session:
        shards.save(session, progress, lease=LEASE)
    done.saves.append(time.perf_counter() - began)
    counting.follow(store, claimed[0].batch_id)
    done.num_results += sum(len(one.results) for one in progress)


def _result(request_id: int) -> NewResult:
    return NewResult(
        request_id=request_id,
        outcome=Outcome.COMPLETED,
        output=OUTPUT,
        finish_reason=FinishReason.LENGTH,
        num_prompt_tokens=20,
        num_cached_tokens=0,
        num_output_tokens=40,
    )


def run_all(way: Way, jobs: Sequence[SimulatedWorker], *, when_ready: Callable[[], None]) -> WorkerTimes:
    """Run these jobs in a few processes, all at once, after calling `when_ready`."""
    context = multiprocessing.get_context("spawn")
    count = min(MAX_PROCESSES, len(jobs))
    barrier, answers = context.Barrier(count + 1), context.Queue()
    processes = [
        context.Process(target=run_some, args=(way, jobs[i::count], count, barrier, answers))
        for i in range(count)
    ]
    for process in processes:
        process.start()
    barrier.wait(START_SECONDS)  # everyone is connected
    when_ready()
    barrier.wait(START_SECONDS)
    total = WorkerTimes()
    try:
        for _ in processes:
            found = _take(answers, processes)
            if isinstance(found, str):
                raise RuntimeError(found)  # noqa: TRY004 - it is the error's text
            total.add(found)
    finally:
        for process in processes:
            process.join()
    return total


def _take(answers: Any, processes: Sequence[BaseProcess]) -> WorkerTimes | str:
    """Return the next answer; raises RuntimeError if none can come any more."""
    while True:
        is_last = not any(process.is_alive() for process in processes)
        try:
            found: WorkerTimes | str = answers.get(timeout=0.1 if is_last else 1.0)
        except Empty:
            if is_last:
                raise RuntimeError("a process of simulated workers has died") from None
        else:
            return found


def run_some(
    way: Way,
    jobs: Sequence[SimulatedWorker],
    num_processes: int,
    barrier: Barrier | threading.Barrier,
    answers: Any,
) -> None:
    """Run jobs in this process, a thread each; answer with what they did, or with the text of an error."""
    store = way.open(num_processes, len(jobs))
    waits: list[float] = []
    lock = batches.lock

    def timed_lock(*given: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return lock(*given, **named)
        finally:
            if not named.get("skip_locked"):
                waits.append(time.perf_counter() - began)

    batches.lock = timed_lock
    found: list[WorkerTimes] = []
    errors: list[str] = []

    def follow(job: SimulatedWorker) -> None:
        try:
            found.append(job.run(store))
        except Exception as error:  # noqa: BLE001 - the parent raises it
            errors.append(f"{job.name}: {error}")

    threads = [threading.Thread(target=follow, args=(job,)) for job in jobs]
    with store.transaction() as session:  # imports and the first connection
        batches.lock(session, "none")
    barrier.wait(START_SECONDS)
    barrier.wait(START_SECONDS)
    waits.clear()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    total = WorkerTimes(lock_waits=waits)
    for one in found:
        total.add(one)
    answers.put(errors[0] if errors else total)
