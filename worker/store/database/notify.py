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


def interactive_shards(url: str, *, every_seconds: float) -> Iterator[int | None]:
    """Yield the id of each notified interactive shard, and None every `every_seconds`; never end.

    The first None means that listening has begun.

    Raises:
        psycopg.OperationalError: the connection was lost.
    """
    for payload in _payloads(url, INTERACTIVE, every_seconds=every_seconds):
        yield None if payload is None else int(payload)


def changed_batches(url: str, *, worker: str, every_seconds: float) -> Iterator[str | None]:
    """Yield the id of each batch that workers are notified of, and None as `interactive_shards` does.

    `worker` has its Presence while this listens.
    """
    return _payloads(url, WORKERS, every_seconds=every_seconds, worker=worker)


def _payloads(
    url: str, channel: str, *, every_seconds: float, worker: str | None = None
) -> Iterator[str | None]:
    with _listening(url, channel) as connection:
        if worker is not None:
            presence.announce(connection, worker)
        while True:
            yield None
            for notice in connection.notifies(timeout=every_seconds):
                yield notice.payload


@contextmanager
def _listening(url: str, channel: str) -> Iterator["psycopg.Connection[TupleRow]"]:
    address = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with closing(psycopg.connect(address, autocommit=True, connect_timeout=5, **KEEPALIVES)) as connection:
        connection.execute(f"LISTEN {channel}".encode())
        yield connection
