"""Reads batches out of files and writes their results into files, until SIGTERM: `python -m api.files`.

Any number of these processes may run: each claims a batch under a lease with a fence. None needs Redis.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable

from psycopg import OperationalError as ListenError

from api.blobs.store import BlobError
from api.dependencies import Services, open_services
from api.files.reading import BatchReader
from api.files.service import prepare
from api.files.tidying import tidy
from api.files.writing import ResultWriter
from api.inputs.checkpoint import ModelDirectoryError
from worker.settings import refuse, settings
from worker.store.database.notify import FILES, wake_ups
from worker.store.database.session import DATABASE_AWAY
from worker.telemetry import configure_logging

logger = logging.getLogger("api.files")

TIDY_SECONDS = 300.0
# These threads yield to the API; a higher niceness would starve them beside an engine that fills the machine.
READER_NICENESS, WRITER_NICENESS = 10, 5


def work(services: Services, turn: Callable[[], bool], stopping: threading.Event, niceness: int) -> None:
    """Take turns while there is work, then wait for the next notification; log and survive errors.

    `niceness` is added to that of the calling thread.
    """
    os.nice(niceness)  # on Linux, of this thread alone
    seconds = services.settings.sweep_seconds
    while not stopping.is_set():
        try:
            for _ in wake_ups(services.settings.database_url, every_seconds=seconds, channel=FILES):
                while not stopping.is_set() and turn():
                    pass
                if stopping.is_set():
                    return
        except (*DATABASE_AWAY, ListenError) as error:
            logger.warning("Postgres does not answer, trying again: %s", str(error).splitlines()[0])
            stopping.wait(seconds)
        except Exception:
            logger.exception("a batch's files could not be worked on; its lease will run out")
            stopping.wait(seconds)


def tidy_now_and_then(services: Services, stopping: threading.Event) -> None:
    """Tidy every few minutes."""
    prepare(services)
    while not stopping.wait(TIDY_SECONDS):
        try:
            tidy(services)
        except (*DATABASE_AWAY, BlobError, OSError) as error:
            logger.warning("tidying failed, trying again later: %s", error)


def run(services: Services, stopping: threading.Event) -> None:
    """Read, write and tidy side by side until `stopping` is set."""
    reader, writer = BatchReader(services, stopping), ResultWriter(services, stopping)
    threads = [
        threading.Thread(target=work, args=(services, reader.turn, stopping, READER_NICENESS)),
        threading.Thread(target=work, args=(services, writer.turn, stopping, WRITER_NICENESS)),
        threading.Thread(target=tidy_now_and_then, args=(services, stopping)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


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
