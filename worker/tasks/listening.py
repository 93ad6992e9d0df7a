"""Listen to Postgres for changed batches, whose runs save at once, and for interactive work.

Its connection also holds this worker's Presence.
"""

import threading
from collections.abc import Callable

from worker.loops import Loop
from worker.runs.interactive_runner import InteractiveRunner
from worker.runs.shard_runner import ShardRunner
from worker.store.database.notify import CLEAR_CACHES, INTERACTIVE, notices_of_worker
from worker.store.database.session import DATABASE_AWAY

LOOK_SECONDS = 1.0


def listen(
    url: str,
    runners: tuple[ShardRunner | InteractiveRunner, ...],
    stopping: threading.Event,
    *,
    worker: str,
    ordered: Callable[[], None] = lambda: None,
    interactive: Callable[[int], None] = lambda _: None,
) -> Loop:
    """Start a loop that tells the runners of changed batches until `stopping`; reconnect to Postgres.

    `ordered` is called when there may be an order to clear the prefix cache in the worker's row, and
    `interactive` with the id of each interactive shard that is ready.
    """

    def follow() -> None:
        for notice in notices_of_worker(url, worker=worker, every_seconds=LOOK_SECONDS):
            if stopping.is_set():
                return
            if notice is None:
                continue
            if notice.channel == INTERACTIVE:
                interactive(int(notice.payload))
            elif notice.payload == CLEAR_CACHES:
                ordered()
            else:
                for runner in runners:
                    runner.batch_changed(notice.payload)

    return Loop("listener", follow, stopping, away=DATABASE_AWAY).start()
