"""Slots over a worker's own, for what must not wait until a shard ends.

That is a shard of a tenant that others leave no slot, and one that a worker had begun that has died. The
engine shares itself out among all that runs, so a shard more costs the others nothing but their due.
"""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

from worker.shard_runner import ShardRunner
from worker.store import fair_slots
from worker.store.session import DATABASE_AWAY, Store

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


class ExtraSlots:
    """Starts shards while all slots are taken, a thread each. `stop` before the engine."""

    def __init__(self, runner: ShardRunner, store: Store, *, slots: int) -> None:
        self._runner = runner
        self._store = store
        self._slots = slots
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(slots, "extra-slot")
        self._thread = threading.Thread(target=self._look, name="extra-slots", daemon=True)

    def start(self) -> None:
        """Begin to take work."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more, and wait for what runs; a draining runner hands back what takes too long."""
        self._stopping.set()
        self._thread.join()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _look(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            # As many again as it has, and none while one of its own is free.
            num_running = self._runner.num_running
            if not self._slots <= num_running < 2 * self._slots:
                continue
            try:
                with self._store.transaction() as session:
                    found = fair_slots.begun(session, limit=2 * self._slots - num_running)
                    if not found:
                        worker = self._runner.keeper.worker
                        fair = fair_slots.next_shard(session, worker=worker, slots=self._slots)
                        found = [] if fair is None else [fair]
            except DATABASE_AWAY as error:
                logger.warning("Postgres does not answer: %s", str(error).splitlines()[0])
                continue
            for shard_id in found:
                self._pool.submit(self._run, shard_id)  # found again before it is claimed: claimed once

    def _run(self, shard_id: int) -> None:
        try:
            ending = self._runner.run_this(shard_id)
        except Exception:
            logger.exception("shard %s", shard_id)
        else:
            logger.info("shard %s, in an extra slot: %s", shard_id, ending)
