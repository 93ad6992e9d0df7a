"""Wake others when rows they care about change. A lost notification costs a sweep or a save, no more."""

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
INTERACTIVE = "headrace_interactive"


def wake_dispatcher(session: Session) -> None:
    """Tell every dispatcher to look round once this transaction commits."""
    session.execute(select(func.pg_notify(DISPATCH, "")))


def wake_files(session: Session) -> None:
    """Tell every files process the same."""
    session.execute(select(func.pg_notify(FILES, "")))


def wake_workers(session: Session, batch_id: str) -> None:
    """Tell the workers that run this batch to save now: the save's answer says what has changed."""
    session.execute(select(func.pg_notify(WORKERS, batch_id)))


def wake_interactive(session: Session, shard_ids: Iterable[int]) -> None:
    """Tell every gpu worker of interactive shards that are ready once this transaction commits."""
    for shard_id in shard_ids:
        session.execute(select(func.pg_notify(INTERACTIVE, str(shard_id))))


def wake_ups(url: str, *, every_seconds: float, channel: str = DISPATCH) -> Iterator[None]:
    """Yield on each notification, and at least every `every_seconds`; end never.

    Raises:
        psycopg.OperationalError: the connection was lost.
    """
    with _listening(url, channel) as connection:
        while True:
            yield
            # Until the first notification or the timeout; then take those that came with it: one look
            # round answers them all.
            for seconds, most in ((every_seconds, 1), (0, None)):
                for _ in connection.notifies(timeout=seconds, stop_after=most):
                    pass


def interactive_shards(url: str, *, every_seconds: float) -> Iterator[int | None]:
    """Yield the id of each interactive shard that is told, and None after every `every_seconds`; end never.

    The first None says that listening has begun.

    Raises:
        psycopg.OperationalError: the connection was lost.
    """
    for payload in _payloads(url, INTERACTIVE, every_seconds=every_seconds):
        yield None if payload is None else int(payload)


def changed_batches(url: str, *, worker: str, every_seconds: float) -> Iterator[str | None]:
    """Yield the id of each batch that workers are told of, as `interactive_shards` does with shards.

    While it listens, `worker` is known to be there.
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
