"""Renew a lease during one long call that cannot renew it itself. Must not know tables."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session

from worker.store.database.session import DATABASE_AWAY, Store

logger = logging.getLogger(__name__)


@contextmanager
def renewing(
    store: Store, renew: Callable[[Session], object], *, every_seconds: float, at_most_seconds: float
) -> Iterator[None]:
    """Run `renew` in a transaction every `every_seconds` during the block, for at most `at_most_seconds`.

    A block that hangs for good thus loses its lease.
    """
    is_over = threading.Event()
    deadline = time.monotonic() + at_most_seconds

    def follow() -> None:
        while not is_over.wait(every_seconds) and time.monotonic() < deadline:
            try:
                with store.transaction() as session:
                    renew(session)
            except DATABASE_AWAY as error:
                logger.warning("a lease cannot be renewed: %s", str(error).splitlines()[0])

    thread = threading.Thread(target=follow, name="renewing", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
