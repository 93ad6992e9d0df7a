"""Hears from Postgres that a batch was cancelled, paused or stopped, so that its runs save at once.

Its connection is what shows that this worker is there.
"""

import logging
import threading

from psycopg import OperationalError

from worker.runs.interactive_runner import InteractiveRunner
from worker.runs.shard_runner import ShardRunner
from worker.store.database.notify import changed_batches

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


def listen(
    url: str,
    runners: tuple[ShardRunner | InteractiveRunner, ...],
    stopping: threading.Event,
    *,
    worker: str,
) -> threading.Thread:
    """Start a thread that passes on what it hears, until `stopping`; survive Postgres going away."""

    def follow() -> None:
        while not stopping.is_set():
            try:
                for batch_id in changed_batches(url, worker=worker, every_seconds=LOOK_SECONDS):
                    if stopping.is_set():
                        return
                    if batch_id is not None:
                        for runner in runners:
                            runner.batch_changed(batch_id)
            except OperationalError as error:
                logger.warning("not listening for a while: %s", str(error).splitlines()[0])
                stopping.wait(LOOK_SECONDS)

    thread = threading.Thread(target=follow, name="listener", daemon=True)
    thread.start()
    return thread
