"""Run interactive shards without tickets, as soon as a notification or a sweep finds them.

They have slots of their own, which no batch can fill.
"""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

from worker.loops import Loop
from worker.runs.interactive_runner import InteractiveRunner
from worker.store.database.session import DATABASE_AWAY, Store
from worker.store.shards import fair_slots
from worker.tasks.shard_ends import show_end
from worker.tasks.task_events import task_events

logger = logging.getLogger(__name__)

INTERACTIVE = "interactive"  # the name of its tasks in Flower


class InteractiveLane:
    """Runs ready interactive shards, a thread each. Call `stop` before the engine stops."""

    def __init__(self, runner: InteractiveRunner, store: Store, *, slots: int, sweep_seconds: float) -> None:
        self._runner = runner
        self._store = store
        self._slots = slots
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # no work is given to the pool once `stop` was called
        self._pool = ThreadPoolExecutor(slots, "interactive")
        self._loop = Loop(
            "interactive", self._look, self._stopping, every_seconds=sweep_seconds, away=DATABASE_AWAY
        )

    def start(self) -> None:
        """Start to look for work; `take` gives it what a notification names."""
        self._loop.start()

    def stop(self) -> None:
        """Take no more work, and wait for running shards; a draining runner hands back slow ones."""
        with self._lock:
            self._stopping.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _look(self) -> None:
        """Take shards left ready by a lost notification, an expired lease or a release."""
        with self._store.look() as session:
            model = self._runner.keeper.serves
            ready = fair_slots.ready_interactive(session, limit=self._slots, model=model)
        for shard_id in ready:
            self.take(shard_id)

    def take(self, shard_id: int) -> None:
        """Run a shard in the next free slot, if no other worker has claimed it until then."""
        with self._lock:
            if not self._stopping.is_set():
                self._pool.submit(self._run, shard_id)

    def _run(self, shard_id: int) -> None:
        try:
            with task_events.show(INTERACTIVE) as view:
                show_end(view, self._runner.run(shard_id), self._store)
        except Exception:
            logger.exception("interactive shard %s", shard_id)
