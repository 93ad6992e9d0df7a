"""Slots over a worker's own, for what must not wait until a shard ends.

That is a shard of a tenant that others leave no slot, one that a worker had begun that has died, and one that
goes before what its own tenant has here. The engine shares itself out among all that runs, by the same rules,
so a shard more costs the others nothing but their due.
"""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

from worker.runs.shard_runner import Ending, ShardRunner
from worker.store.database.session import DATABASE_AWAY, Store
from worker.store.shards import fair_slots

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
AGAIN_SECONDS = 0.1  # when the last look has found something


class ExtraSlots:
    """Starts shards while all slots are taken, a thread each. `stop` before the engine."""

    def __init__(self, runner: ShardRunner, store: Store, *, slots: int) -> None:
        self._runner = runner
        self._store = store
        self._slots = slots
        self._stopping = threading.Event()
        self._has_ended = threading.Event()  # a shard in an extra slot: look whether another waits for it
        self._pool = ThreadPoolExecutor(slots, "extra-slot")
        self._thread = threading.Thread(target=self._look, name="extra-slots", daemon=True)

    def start(self) -> None:
        """Begin to take work."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more, and wait for what runs; a draining runner hands back what takes too long."""
        self._stopping.set()
        self._has_ended.set()
        self._thread.join()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _look(self) -> None:
        seconds = LOOK_SECONDS
        while not self._stopping.is_set():
            self._has_ended.wait(seconds)
            self._has_ended.clear()
            found = self._find()
            for shard_id in found:
                self._pool.submit(self._run, shard_id)  # found again before it is claimed: claimed once
            seconds = AGAIN_SECONDS if found else LOOK_SECONDS

    def _find(self) -> list[int]:
        """Return shards to start now; none while a slot of the worker's own is free."""
        keeper, slots = self._runner.keeper, self._slots
        worker, model = keeper.worker, keeper.serves
        num_extra = self._runner.num_running - slots
        if self._stopping.is_set() or not 0 <= num_extra < slots:
            return []
        try:
            with self._store.transaction() as session:
                if begun := fair_slots.begun(session, limit=slots - num_extra, model=model):
                    return begun
                found = fair_slots.next_shard(session, worker=worker, slots=slots, model=model)
                # What is a tenant's own affair leaves some of them to others.
                if found is None and num_extra < (slots + 1) // 2:
                    found = fair_slots.next_of_own(session, worker=worker, slots=slots, model=model)
        except DATABASE_AWAY as error:
            logger.warning("Postgres does not answer: %s", str(error).splitlines()[0])
            return []
        return [] if found is None else [found]

    def _run(self, shard_id: int) -> None:
        try:
            ending = self._runner.run_this(shard_id)
        except Exception:
            logger.exception("shard %s", shard_id)
        else:
            logger.info("shard %s, in an extra slot: %s", shard_id, ending)
            if ending is not Ending.NOTHING_TO_DO:
                self._has_ended.set()
