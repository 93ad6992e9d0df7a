"""Listen to Postgres for cancelled, paused or stopped batches, so that their runs save at once.

Its connection also holds this worker's Presence.
"""

import threading
from collections.abc import Callable

from worker.loops import Loop
from worker.runs.interactive_runner import InteractiveRunner
from worker.runs.shard_runner import ShardRunner
from worker.store.database.notify import CLEAR_CACHES, changed_batches
from worker.store.database.session import DATABASE_AWAY

LOOK_SECONDS = 1.0


def listen(
    url: str,
    runners: tuple[ShardRunner | InteractiveRunner, ...],
    stopping: threading.Event,
    *,
    worker: str,
    ordered: Callable[[], None] = lambda: None,
) -> Loop:
    """Start a loop that tells the runners of changed batches until `stopping`; reconnect to Postgres.

    `ordered` is called when there may be an order to clear the prefix cache in the worker's row.
    """

    def follow() -> None:
        for batch_id in changed_batches(url, worker=worker, every_seconds=LOOK_SECONDS):
            if stopping.is_set():
                return
            if batch_id == CLEAR_CACHES:
                ordered()
            elif batch_id is not None:
                for runner in runners:
                    runner.batch_changed(batch_id)

    return Loop("listener", follow, stopping, away=DATABASE_AWAY).start()
