"""Renew a lease during one long call that cannot renew it itself. Must not know tables."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy.orm import Session

from worker.loops import Loop
from worker.store.database.session import DATABASE_AWAY, Store


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
        if is_over.wait(every_seconds) or time.monotonic() >= deadline:
            is_over.set()
            return
        with store.transaction() as session:
            renew(session)

    loop = Loop("renewing", follow, is_over, away=DATABASE_AWAY).start()
    try:
        yield
    finally:
        is_over.set()
        loop.join()
