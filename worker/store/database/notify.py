"""Notify processes of changed rows. A lost notification costs one sweep or save interval, no more."""

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager

import psycopg
from psycopg.rows import TupleRow
from sqlalchemy import func, select
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from worker.store.database import presence
from worker.store.database.session import KEEPALIVES

DISPATCH = "headrace_dispatch"
FILES = "headrace_files"
WORKERS = "headrace_control"
CLEAR_CACHES = "clear-caches"  # to WORKERS, in place of a batch's id
INTERACTIVE = "headrace_interactive"


def wake_dispatcher(session: Session) -> None:
    """Notify every dispatcher once this transaction commits."""
    session.execute(select(func.pg_notify(DISPATCH, "")))


def wake_files(session: Session) -> None:
    """Notify every files process once this transaction commits."""
    session.execute(select(func.pg_notify(FILES, "")))


def wake_workers(session: Session, batch_id: str) -> None:
    """Notify the workers that run this batch to save now; the save's answer says what has changed."""
    session.execute(select(func.pg_notify(WORKERS, batch_id)))


def wake_interactive(session: Session, shard_ids: Iterable[int]) -> None:
    """Notify every gpu worker of ready interactive shards once this transaction commits."""
    for shard_id in shard_ids:
        session.execute(select(func.pg_notify(INTERACTIVE, str(shard_id))))


def wake_ups(url: str, *, every_seconds: float, channel: str = DISPATCH) -> Iterator[None]:
    """Yield on each notification, and at least every `every_seconds`; never end.

    Raises:
        psycopg.OperationalError: the connection was lost.
    """
    with _listening(url, channel) as connection:
        while True:
            yield
            # Wait for the first notification or the timeout, then take those that came with it: one
            # sweep serves them all.
            for seconds, most in ((every_seconds, 1), (0, None)):
                for _ in connection.notifies(timeout=seconds, stop_after=most):
                    pass


def notices_of_worker(url: str, *, worker: str, every_seconds: float) -> Iterator[psycopg.Notify | None]:
    """Yield what gpu workers are notified of, and None every `every_seconds`; never end.

    One connection listens to the channels WORKERS and INTERACTIVE, and holds the Presence of `worker`. The
    first None means that both have begun.

    Raises:
        psycopg.OperationalError: the connection was lost.
    """
    with _listening(url, WORKERS, INTERACTIVE) as connection:
        presence.announce(connection, worker)
        while True:
            yield None
            yield from connection.notifies(timeout=every_seconds)


@contextmanager
def _listening(url: str, *channels: str) -> Iterator["psycopg.Connection[TupleRow]"]:
    address = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with closing(psycopg.connect(address, autocommit=True, connect_timeout=5, **KEEPALIVES)) as connection:
        for channel in channels:
            connection.execute(f"LISTEN {channel}".encode())
        yield connection
