"""Return shards of lost workers: soon after their Presence ends, else when their leases expire."""

import time
from dataclasses import dataclass, field
from datetime import timedelta

from worker.store.database import presence
from worker.store.database.session import Store
from worker.store.shards import leases

# Grace period in which a disconnected worker can reconnect and renew its leases.
GRACE = timedelta(seconds=3)


@dataclass(slots=True)
class LostWorkers:
    """Tracks which workers are present, as one dispatcher sees it."""

    store: Store
    max_attempts: int
    grace: timedelta = GRACE
    _present: frozenset[int] = frozenset()
    _judges_from: float = field(default=float("-inf"))

    def connected(self) -> None:
        """Forget who was present and allow a grace period: without Postgres no worker could renew a lease."""
        self._present = frozenset()
        self._judges_from = time.monotonic() + self.grace.total_seconds()

    def sweep(self, *, limit: int) -> None:
        """Return shards whose lease expired, and shorten the leases of workers that have gone."""
        with self.store.look() as session:
            present = presence.present(session)
        if gone := self._present - present:
            with self.store.transaction() as session:
                presence.cut_leases(session, gone, to=self.grace)
        self._present = present
        if time.monotonic() < self._judges_from:
            return
        with self.store.look() as session:
            lapsed = leases.expired(session, limit=limit)
        for shard_id, batch_id in lapsed:
            with self.store.transaction() as session:
                leases.return_expired(session, shard_id, batch_id, max_attempts=self.max_attempts)
