"""Wake the dispatcher when rows it cares about change. A lost notification costs one sweep, no more."""

from collections.abc import Iterable, Iterator
from contextlib import closing

import psycopg
from sqlalchemy import func, select
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

CHANNEL = "headrace_dispatch"
INTERACTIVE_CHANNEL = "headrace_interactive"


def wake_dispatcher(session: Session) -> None:
    """Tell every dispatcher to look round once this transaction commits."""
    session.execute(select(func.pg_notify(CHANNEL, "")))


def wake_interactive(session: Session, shard_ids: Iterable[int]) -> None:
    """Tell every gpu worker of interactive shards that are ready once this transaction commits."""
    for shard_id in shard_ids:
        session.execute(select(func.pg_notify(INTERACTIVE_CHANNEL, str(shard_id))))


def interactive_shards(url: str, *, every_seconds: float) -> Iterator[int | None]:
    """Yield the id of each interactive shard that is told, and None after every `every_seconds`; end never.

    The first None says that listening has begun.

    Raises:
        psycopg.OperationalError: the connection was lost.
    """
    address = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with closing(psycopg.connect(address, autocommit=True, connect_timeout=5)) as connection:
        connection.execute(f"LISTEN {INTERACTIVE_CHANNEL}")
        while True:
            yield None
            for notice in connection.notifies(timeout=every_seconds):
                yield int(notice.payload)


def wake_ups(url: str, *, every_seconds: float) -> Iterator[None]:
    """Yield on each notification, and at least every `every_seconds`; end never.

    Raises:
        psycopg.OperationalError: the connection was lost.
    """
    address = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with closing(psycopg.connect(address, autocommit=True, connect_timeout=5)) as connection:
        connection.execute(f"LISTEN {CHANNEL}")
        while True:
            yield
            # Until the first notification or the timeout; then take those that came with it: one look
            # round answers them all.
            for seconds, most in ((every_seconds, 1), (0, None)):
                for _ in connection.notifies(timeout=seconds, stop_after=most):
                    pass
