"""Track which worker processes are present: each holds an advisory lock on a connection that dies with it.

A lock that is gone proves no death, as the connection alone may have been lost. So no shard is taken away:
leases are cut short, and a worker that lives renews them.
"""

from collections.abc import Collection
from datetime import timedelta

import psycopg
from psycopg.rows import TupleRow
from sqlalchemy import BigInteger, ColumnElement, bindparam, cast, func, select, text, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from worker.contract.states import ShardState
from worker.store.rows.shards import ShardRow

KIND = 0x48445250  # marks our locks among all advisory ones
# Postgres shows the 32 bits of a lock's key without a sign.
UNSIGNED = 0xFFFFFFFF


def announce(connection: "psycopg.Connection[TupleRow]", worker: str) -> None:
    """Announce a worker as present for as long as this connection lasts."""
    connection.execute("SELECT pg_advisory_lock_shared(%s, hashtext(%s))", [KIND, worker])


def present(session: Session) -> frozenset[int]:
    """Return the lock keys of the workers that are present."""
    keys = text(
        "SELECT DISTINCT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND classid = :kind"
        " AND objsubid = 2 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    return frozenset(session.scalars(keys, {"kind": KIND}))


def key_of(worker: InstrumentedAttribute[str] | InstrumentedAttribute[str | None]) -> ColumnElement[int]:
    """Return the SQL expression of the lock key of a worker, as `present` returns it."""
    return cast(func.hashtext(worker), BigInteger).op("&")(bindparam("bits", UNSIGNED, BigInteger))


def cut_leases(session: Session, keys: Collection[int], *, to: timedelta) -> None:
    """Shorten workers' leases to at most `to` from now."""
    soon = func.now() + to
    held = (
        select(ShardRow.id)
        .where(
            ShardRow.state == ShardState.RUNNING,
            ShardRow.lease_expires_at > soon,
            key_of(ShardRow.worker).in_(keys),
        )
        .order_by(ShardRow.id)
        .with_for_update(skip_locked=True)  # a locked row is being saved
    )
    session.execute(
        update(ShardRow)
        .where(ShardRow.id.in_(held))
        .values(lease_expires_at=soon)
        .execution_options(synchronize_session=False)
    )
