"""Run shards in slots beyond a worker's own, where they must not wait until another shard ends.

Such a shard belongs to a tenant that others leave no slot, was begun by a worker that has died, or goes
before the work that its own tenant has here. The engine shares its time among all running shards by the
same rules, so one more shard takes from the others only its fair share.
"""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

from worker.contract.messages import RUN_SHARD
from worker.loops import Loop
from worker.runs.run import Ending
from worker.runs.shard_runner import ShardRunner
from worker.store.database.session import DATABASE_AWAY, Store
from worker.store.shards import fair_slots
from worker.tasks.shard_ends import show_end
from worker.tasks.task_events import task_events

logger = logging.getLogger(__name__)

# Extra slots for each slot of a worker's own: one for work that is its turn, the rest for shards that others
# have left. A worker that dies may hold, beside its own, what others have left to it; as long as all of that
# finds a slot, nothing that was begun waits until other shards end.
MOST = 8
LOOK_SECONDS = 1.0
AGAIN_SECONDS = 0.1  # after a look that found a shard


class ExtraSlots:
    """Starts shards while all slots are taken, a thread each. Call `stop` before the engine stops."""

    def __init__(self, runner: ShardRunner, store: Store, *, slots: int) -> None:
        self._runner = runner
        self._store = store
        self._slots = slots
        self._stopping = threading.Event()
        self._has_ended = threading.Event()  # a shard in an extra slot ended: look for another
        self._most = MOST * slots
        self._pool = ThreadPoolExecutor(self._most, "extra-slot")
        self._wait_seconds = LOOK_SECONDS
        self._loop = Loop("extra-slots", self._look, self._stopping, away=DATABASE_AWAY)

    def start(self) -> None:
        """Start to take work."""
        self._loop.start()

    def stop(self) -> None:
        """Take no more work, and wait for running shards; a draining runner hands back slow ones."""
        self._stopping.set()
        self._has_ended.set()
        self._loop.join()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _look(self) -> None:
        self._has_ended.wait(self._wait_seconds)
        self._has_ended.clear()
        found = self._find()
        for shard_id in found:
            self._pool.submit(self._run, shard_id)  # may be found twice, is claimed once
        self._wait_seconds = AGAIN_SECONDS if found else LOOK_SECONDS

    def _find(self) -> list[int]:
        """Return shards to start now; none while one of the worker's own slots is free."""
        keeper, slots = self._runner.keeper, self._slots
        worker, model = keeper.worker, keeper.serves
        num_extra = self._runner.num_running - slots
        if self._stopping.is_set() or not 0 <= num_extra < self._most:
            return []
        with self._store.look() as session:
            if begun := fair_slots.begun(session, limit=self._most - num_extra, model=model):
                return begun
            if num_extra >= slots:
                return []
            found = fair_slots.next_shard(session, worker=worker, slots=slots, model=model)
            # A tenant's order among its own work may take only half of the extra slots.
            if found is None and num_extra < (slots + 1) // 2:
                found = fair_slots.next_of_own(session, worker=worker, slots=slots, model=model)
        return [] if found is None else [found]

    def _run(self, shard_id: int) -> None:
        try:
            with task_events.show(RUN_SHARD) as view:
                ending = self._runner.run_this(shard_id)
                show_end(view, ending, self._store)
        except Exception:
            logger.exception("shard %s", shard_id)
        else:
            logger.debug("shard %s, in an extra slot: %s", shard_id, ending)
            if ending is not Ending.NOTHING_TO_DO:
                self._has_ended.set()
