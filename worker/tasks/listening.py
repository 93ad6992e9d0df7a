"""Listen to Postgres for cancelled, paused or stopped batches, so that their runs save at once.

Its connection also holds this worker's Presence.
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
    """Start a thread that tells the runners of changed batches until `stopping`; reconnect to Postgres."""

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
