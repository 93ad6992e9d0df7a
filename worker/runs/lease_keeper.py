"""Claims shards for one worker process and keeps its leases, in a thread of its own. Knows no results."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from worker.contract.models import ServedModel
from worker.engine.engine_thread import EngineThread
from worker.store.database.session import DATABASE_AWAY, Store
from worker.store.shards import shards
from worker.store.shards.shards import Claim

logger = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 4
# An engine that has finished no Step for this long loses what it holds: a long Step is not a death.
STALL_SECONDS = 15.0
CONFIRM_SECONDS = 0.5


class LeaseKeeper:
    """Holds claims on shards for runners, a thread each. `stop` after the last of them."""

    def __init__(
        self,
        store: Store,
        engine: EngineThread,
        *,
        worker: str,
        lease: timedelta,
        model: ServedModel | None = None,
    ) -> None:
        self.worker = worker
        self.model = model  # None: what waits for no model in particular is all that is claimed
        self._store = store
        self._engine = engine
        self._lease = lease
        self._held: set[tuple[int, int]] = set()  # (shard id, fence)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._renew_for_ever, name="leases", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def stop(self) -> None:
        """Renew no more."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    @contextmanager
    def hold(self, shard_id: int) -> Iterator[Claim | None]:
        """Claim a shard and keep its lease while the block runs; None when there is nothing to take."""
        held = self._claim(shard_id)
        if held is None:
            yield None
            return
        self._held.add((held.shard_id, held.fence))
        try:
            yield held
        finally:
            self._held.discard((held.shard_id, held.fence))

    @property
    def serves(self) -> str | None:
        """The fingerprint of the model whose shards are claimed here."""
        return None if self.model is None else self.model.fingerprint

    @property
    def model_id(self) -> int | None:
        """What results and partial outputs name that model by."""
        return None if self.model is None else self.model.id

    @property
    def lease(self) -> timedelta | None:
        """For how long what is held may be held from now on; None while the engine makes no progress."""
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

    def _is_ours(self, held: Claim) -> bool:
        """Ask until there is an answer whether a claim was committed whose commit was cut off.

        Left alone, it would look like a worker that died of its shard.
        """
        deadline = time.monotonic() + self._lease.total_seconds()
        while time.monotonic() < deadline and not self._stopping.wait(CONFIRM_SECONDS):
            try:
                with self._store.transaction() as session:
                    return shards.is_claimed(session, held, worker=self.worker)
            except DATABASE_AWAY as error:
                logger.warning("shard %s may be ours: %s", held.shard_id, str(error).splitlines()[0])
        return False

    def _renew_for_ever(self) -> None:
        while not self._stopping.wait(self._lease.total_seconds() / RENEWALS_PER_LEASE):
            try:
                self._renew_once()
            except DATABASE_AWAY as error:
                logger.warning("leases are not renewed yet: %s", str(error).splitlines()[0])

    def _renew_once(self) -> None:
        held, lease = self._held.copy(), self.lease
        if held and lease is not None:
            with self._store.transaction() as session:
                shards.renew(session, held, lease=lease)
