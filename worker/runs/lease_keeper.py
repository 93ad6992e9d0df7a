"""Claim shards for one worker process, and renew their leases in a thread. Must not know results."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from worker.contract.models import ServedModel
from worker.contract.states import Lane
from worker.engine.engine_thread import EngineThread
from worker.loops import Loop
from worker.store.database.notify import wake_dispatcher
from worker.store.database.session import DATABASE_AWAY, Store
from worker.store.shards import leases, shards
from worker.store.shards.shards import Claim
from worker.telemetry import work

logger = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 4
# An engine that finishes no Step for this long loses its leases; a shorter pause is only a long Step.
STALL_SECONDS = 15.0
CONFIRM_SECONDS = 0.5
# So many claims within a sweep may use up the tickets before the next one issues more. A worker with more
# slots has more tickets out: worker/dispatcher/dispatcher.py.
CLAIMS_TO_WAKE = 3


class LeaseKeeper:
    """Holds claims on shards for runners, a thread each. Call `stop` after the last runner has ended."""

    def __init__(
        self,
        store: Store,
        engine: EngineThread,
        *,
        worker: str,
        lease: timedelta,
        model: ServedModel | None = None,
        on_claim: Callable[[Claim], None] = lambda _: None,
        sweep_seconds: float = 1.0,
        slots: int = 1,
    ) -> None:
        self.worker = worker
        self.model = model  # None: claims only shards that any model may run
        self._store = store
        self._engine = engine
        self._lease = lease
        self._sweep_seconds = sweep_seconds  # the dispatcher's
        self._on_claim = on_claim  # called in the thread that will run the shard
        self._held: set[tuple[int, int]] = set()  # (shard id, fence)
        # Since the dispatcher was last woken.
        self._claimed_at: deque[float] = deque(maxlen=max(CLAIMS_TO_WAKE, slots))
        self._stopping = threading.Event()
        self._loop = Loop(
            "leases",
            self._renew,
            self._stopping,
            every_seconds=lease.total_seconds() / RENEWALS_PER_LEASE,
            away=DATABASE_AWAY,
        )

    def start(self) -> None:
        """Start to renew leases."""
        self._loop.start()

    def stop(self) -> None:
        """Stop renewing leases."""
        self._stopping.set()
        self._loop.join()

    @contextmanager
    def hold(self, shard_id: int) -> Iterator[Claim | None]:
        """Claim a shard and renew its lease while the block runs; yield None if it cannot be claimed."""
        held = self._claim(shard_id)
        if held is None:
            yield None
            return
        self._held.add((held.shard_id, held.fence))
        if held.lane is Lane.BATCH:
            self._wake_dispatcher()
        self._on_claim(held)
        try:
            with work(batch=held.batch_id, shard=held.shard_id):
                yield held
        finally:
            self._held.discard((held.shard_id, held.fence))

    @property
    def serves(self) -> str | None:
        """The fingerprint of the model whose shards are claimed here."""
        return None if self.model is None else self.model.fingerprint

    @property
    def model_id(self) -> int | None:
        """The id by which results and partial outputs name that model."""
        return None if self.model is None else self.model.id

    @property
    def lease(self) -> timedelta | None:
        """The lease that held shards get from now; None while the engine makes no progress."""
        is_stalled = time.monotonic() - self._engine.last_progress_at > STALL_SECONDS
        return None if is_stalled else self._lease

    def _claim(self, shard_id: int) -> Claim | None:
        held: Claim | None = None
        try:
            with self._store.transaction() as session:
                held = shards.claim(
                    session, shard_id, worker=self.worker, lease=self._lease, model=self.model
                )
        except DATABASE_AWAY:
            if held is None:
                raise
            return held if self._is_ours(held) else None
        return held

    def _wake_dispatcher(self) -> None:
        """Wake the dispatcher for new tickets, if its sweeps come too seldom for the claims made here.

        Each notification wakes everybody who listens, and in the transaction of a claim it would make all
        transactions with notifications wait for each other.
        """
        now = time.monotonic()
        self._claimed_at.append(now)
        recent = tuple(self._claimed_at)  # others may clear it
        if len(recent) == self._claimed_at.maxlen and now - recent[0] < self._sweep_seconds:
            self._claimed_at.clear()
            with suppress(*DATABASE_AWAY), self._store.look() as session:
                wake_dispatcher(session)

    def _is_ours(self, held: Claim) -> bool:
        """Return whether a claim was committed whose commit was cut off; ask until Postgres answers.

        Left alone, the claim would look like that of a worker which its shard has killed.
        """
        deadline = time.monotonic() + self._lease.total_seconds()
        while time.monotonic() < deadline and not self._stopping.wait(CONFIRM_SECONDS):
            try:
                with self._store.transaction() as session:
                    return leases.is_claimed(session, held, worker=self.worker)
            except DATABASE_AWAY as error:
                logger.warning("shard %s may be ours: %s", held.shard_id, str(error).splitlines()[0])
        return False

    def _renew(self) -> None:
        held, lease = self._held.copy(), self.lease
        if held and lease is not None:
            with self._store.transaction() as session:
                leases.renew(session, held, lease=lease)
