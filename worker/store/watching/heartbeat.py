"""Tells Postgres that a process without an engine lives: callbacks worker, dispatcher, files process."""

import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from uuid import uuid4

from worker.contract.processes import BEAT_SECONDS, BUILD, build
from worker.loops import Loop
from worker.store.database.session import DATABASE_AWAY, Store
from worker.store.watching import workers

logger = logging.getLogger(__name__)


@contextmanager
def heartbeat(store: Store, process: str, *, slots: int = 0) -> Iterator[None]:
    """Write the row of this process every few seconds while the block runs, and delete it at the end.

    `process` is the queue that it serves, or its name if it serves none. `slots` is the number of tasks that
    it can run at once.
    """
    name = f"{process}@{platform.node()}/{os.getpid()}-{uuid4().hex[:6]}"
    info = {BUILD: build()}

    def turn() -> None:
        with store.transaction() as session:
            workers.seen(session, name=name, queue=process, slots=slots, info=info)

    stopping = Event()
    loop = Loop("heartbeat", turn, stopping, every_seconds=BEAT_SECONDS, away=DATABASE_AWAY).start()
    try:
        yield
    finally:
        stopping.set()
        loop.join()
        try:
            with store.transaction() as session:
                workers.gone(session, name)
        except DATABASE_AWAY as error:
            logger.warning("the end of this process is not recorded: %s", str(error).splitlines()[0])
