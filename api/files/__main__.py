"""Reads batches out of files and writes their results into files, until SIGTERM: `python -m api.files`.

Any number of these processes may run: each claims a batch under a lease with a fence. None needs Redis.
"""

import logging
import signal
import threading
from collections.abc import Callable
from functools import partial

from api.blobs.store import BlobError
from api.dependencies import Services, open_services
from api.files.reading import BatchReader
from api.files.service import prepare
from api.files.tidying import tidy
from api.files.writing import ResultWriter
from api.inputs.checkpoint import ModelDirectoryError
from worker.contract.processes import FILES as FILES_PROCESS
from worker.loops import Loop
from worker.settings import refuse, settings
from worker.store.database.notify import FILES, wake_ups
from worker.store.database.session import DATABASE_AWAY
from worker.store.watching.heartbeat import heartbeat
from worker.telemetry import configure_logging

logger = logging.getLogger("api.files")

TIDY_SECONDS = 300.0
# These threads yield to the API; a higher niceness would starve them beside an engine that fills the machine.
READER_NICENESS, WRITER_NICENESS = 10, 5


def work(services: Services, turn: Callable[[], bool], stopping: threading.Event) -> None:
    """Take turns while there is work, and again at each notification."""
    seconds = services.settings.sweep_seconds
    for _ in wake_ups(services.settings.direct_url, every_seconds=seconds, channel=FILES):
        while not stopping.is_set() and _survive(turn):
            pass
        if stopping.is_set():
            return


def _survive(turn: Callable[[], bool]) -> bool:
    """Take a turn; a batch whose files raise an unexpected error must not stop the work on others."""
    try:
        return turn()
    except DATABASE_AWAY:
        raise
    except Exception:
        logger.exception("a batch's files could not be worked on; its lease will run out")
        return False


def run(services: Services, stopping: threading.Event) -> None:
    """Read, write and tidy side by side until `stopping` is set."""
    prepare(services)

    def tidy_later() -> None:
        if not stopping.wait(TIDY_SECONDS):
            tidy(services)

    def loop(name: str, turn: Callable[[], bool], niceness: int) -> Loop:
        follow = partial(work, services, turn, stopping)
        return Loop(name, follow, stopping, away=DATABASE_AWAY, niceness=niceness)

    loops = (
        loop("reader", BatchReader(services, stopping).turn, READER_NICENESS),
        loop("writer", ResultWriter(services, stopping).turn, WRITER_NICENESS),
        Loop("tidy", tidy_later, stopping, away=(*DATABASE_AWAY, BlobError, OSError)),
    )
    with heartbeat(services.store, FILES_PROCESS):
        for one in loops:
            one.start()
        for one in loops:
            one.join()


if __name__ == "__main__":
    configure_logging(settings().log_level, settings().log_format)
    stopping = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stopping.set())
    try:
        services = open_services(settings())
    except ModelDirectoryError as error:
        refuse(f"HEADRACE_MODEL: {error}")
    run(services, stopping)
