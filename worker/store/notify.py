"""Wake the dispatcher, or the files process, when rows it cares about change.

A lost notification costs one sweep, no more.
"""

from collections.abc import Iterator
from contextlib import closing

import psycopg
from sqlalchemy import func, select
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

DISPATCH = "headrace_dispatch"
FILES = "headrace_files"


def wake_dispatcher(session: Session) -> None:
    """Tell every dispatcher to look round once this transaction commits."""
    session.execute(select(func.pg_notify(DISPATCH, "")))


def wake_files(session: Session) -> None:
    """Tell every files process the same."""
    session.execute(select(func.pg_notify(FILES, "")))


def wake_ups(url: str, *, every_seconds: float, channel: str = DISPATCH) -> Iterator[None]:
    """Yield on each notification, and at least every `every_seconds`; end never.

    Raises:
        psycopg.OperationalError: the connection was lost.
    """
    address = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with closing(psycopg.connect(address, autocommit=True, connect_timeout=5)) as connection:
        connection.execute(f"LISTEN {channel}")
        while True:
            yield
            # Until the first notification or the timeout; then take those that came with it: one look
            # round answers them all.
            for seconds, most in ((every_seconds, 1), (0, None)):
                for _ in connection.notifies(timeout=seconds, stop_after=most):
                    pass
