"""Provide connections and transactions: the product's only commit and its only filter by tenant."""

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Any, Self

import psycopg
from sqlalchemy import create_engine, event
from sqlalchemy.engine import Connection, Dialect, Engine
from sqlalchemy.exc import InterfaceError, InternalError, InvalidatePoolError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import ORMExecuteState, Session, sessionmaker, with_loader_criteria
from sqlalchemy.pool import ConnectionPoolEntry

from worker.contract.access import DEFAULT_TENANT
from worker.contract.prices import FREE, Prices
from worker.store.database import journal
from worker.store.rows.schema import Owned

# Errors of a transaction when Postgres goes away, ends the session, or is too busy. All of it was done or
# nothing, and it may be tried again. The session's end in an idle transaction is an InternalError.
# psycopg's own comes from a connection that listens.
DATABASE_AWAY = (OperationalError, InterfaceError, InternalError, PoolTimeoutError, psycopg.OperationalError)

# A transaction here is a few statements; one that waits longer than this is stuck behind something.
SESSION_OPTIONS = {
    "statement_timeout": "60s",
    "lock_timeout": "10s",
    "timezone": "UTC",
    # A client that reads nothing more, perhaps on a dead machine, keeps its locks no longer than this.
    "tcp_user_timeout": "10s",
}
# Limit between two statements: other workers wait for the locks of one that was stopped or cut off.
IDLE_SECONDS = 5.0
# A pooled connection that was used so lately is taken to be alive; Postgres takes longer to start again.
TRUSTED_SECONDS = 1.0
USED_AT = "used_at"
KEEPALIVES: dict[str, Any] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,  # milliseconds
}


class Store:
    """A pool of connections to one database: `with store.transaction() as session: ...`.

    Behind a pooler in transaction mode (PgBouncer), each transaction may run in another session. So it brings
    its options with it, and nothing is prepared in a session.
    """

    def __init__(
        self,
        url: str,
        *,
        has_pooler: bool = False,
        pool_size: int = 10,
        max_overflow: int = 10,
        idle_seconds: float = IDLE_SECONDS,
        transaction_seconds: float | None = None,
        prices: Prices = FREE,
    ) -> None:
        options = SESSION_OPTIONS | {"idle_in_transaction_session_timeout": f"{round(idle_seconds * 1000)}ms"}
        of_connection: dict[str, Any] = {
            "options": " ".join(f"-c {name}={options[name]}" for name in options)
        }
        if has_pooler:  # which would refuse them; `_begin` begins transactions, not psycopg
            of_connection = {"autocommit": True, "prepare_threshold": None}
        self.engine: Engine = create_engine(
            url,
            pool_size=pool_size,
            max_overflow=max_overflow,
            pool_timeout=10,
            hide_parameters=True,  # prompts and outputs do not belong in a log
            connect_args={
                "connect_timeout": 5,
                "application_name": "headrace",
                **KEEPALIVES,
                **of_connection,
            },
        )
        event.listen(self.engine, "connect", _was_used)
        event.listen(self.engine, "checkin", _was_used)
        event.listen(self.engine, "checkout", partial(_check_unless_used_lately, self.engine.dialect))
        if has_pooler:
            event.listen(self.engine, "begin", partial(_begin, options, transaction_seconds))
        elif transaction_seconds is not None:
            event.listen(self.engine, "connect", partial(_limit_transactions, transaction_seconds))
        self._autocommit = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self._has_pooler = has_pooler
        self._sessions = sessionmaker(self.engine, expire_on_commit=False)
        event.listen(self._sessions, "do_orm_execute", _show_only_own_rows)
        event.listen(self._sessions, "after_rollback", journal.take)
        self._prices = prices
        self.tenant_id: str | None = None  # shows only this tenant's rows; None: all rows

    def of_tenant(self, tenant_id: str) -> Self:
        """Return a copy of this store that shows only one tenant's rows."""
        scoped = copy.copy(self)
        scoped.tenant_id = tenant_id
        return scoped

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Run one transaction: commit at the end of the block, roll back on any exception."""
        with self._sessions(info={"tenant_id": self.tenant_id, "prices": self._prices}) as session:
            yield session
            events = journal.take(session)
            try:
                session.commit()
            except DATABASE_AWAY:
                journal.write(events, is_certain=False)
                raise
            journal.write(events)

    @contextmanager
    def look(self) -> Iterator[Session]:
        """Open a session for reads without a transaction, whose begin and end are a round trip each.

        It sees what a transaction would, as transactions here are READ COMMITTED too. Behind a pooler it is
        one, as only a transaction has time limits there.
        """
        if self._has_pooler:
            with self.transaction() as session:
                yield session
            return
        with self._sessions(bind=self._autocommit, info={"tenant_id": self.tenant_id}) as session:
            yield session

    def close(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()


def _was_used(_connection: Any, record: ConnectionPoolEntry) -> None:
    record.info[USED_AT] = time.monotonic()


def _check_unless_used_lately(
    dialect: Dialect, connection: Any, record: ConnectionPoolEntry, _pooled: object
) -> None:
    """Have the pool replace its connections if Postgres has ended this one. To ask is a round trip."""
    if time.monotonic() - record.info.get(USED_AT, -inf) < TRUSTED_SECONDS:
        return
    try:
        dialect.do_ping(connection)
    except psycopg.Error as error:
        raise InvalidatePoolError from error


def _begin(options: dict[str, str], seconds: float | None, connection: Connection) -> None:
    """Begin a transaction that has its session's options: one message, as BEGIN alone would be."""
    if seconds is not None and _ends_transactions(connection.connection.dbapi_connection):
        options = options | {"transaction_timeout": f"{round(seconds * 1000)}ms"}
    sets = (f"SET LOCAL {name} = '{value}'" for name, value in options.items())
    connection.exec_driver_sql("; ".join(("BEGIN", *sets)))


def _ends_transactions(connection: Any) -> bool:
    return bool(connection.info.server_version >= 170000)


def _limit_transactions(seconds: float, connection: Any, _: object) -> None:
    # A session that waits for the rest of a message is not idle; this ends it too, from Postgres 17 on.
    if _ends_transactions(connection):
        connection.autocommit = True  # in a transaction, a rollback would undo the setting
        connection.execute(f"SET transaction_timeout = {round(seconds * 1000)}")
        connection.autocommit = False


def tenant_of(session: Session) -> str:
    """Return the tenant that owns new rows of this session."""
    return session.info.get("tenant_id") or DEFAULT_TENANT


def prices_of(session: Session) -> Prices:
    """Return the prices at which this process counts the cost of work."""
    prices: Prices = session.info["prices"]
    return prices


def _show_only_own_rows(state: ORMExecuteState) -> None:
    tenant_id = state.session.info.get("tenant_id")
    if tenant_id is not None and not state.is_insert:
        state.statement = state.statement.options(
            with_loader_criteria(Owned, lambda table: table.tenant_id == tenant_id, include_aliases=True)
        )
