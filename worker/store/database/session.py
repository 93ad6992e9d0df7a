"""Connections and transactions: the only commit in the product, and the only filter by tenant."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

from sqlalchemy import create_engine, event
from sqlalchemy.engine import Engine
from sqlalchemy.exc import InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import ORMExecuteState, Session, sessionmaker, with_loader_criteria

from worker.contract.access import DEFAULT_TENANT
from worker.store.rows.schema import Owned

# What a transaction raises when Postgres goes away, ends the session, or is too busy: all of it was done or
# nothing, and it may be tried again. The session's end in an idle transaction is an InternalError.
DATABASE_AWAY = (OperationalError, InterfaceError, InternalError, PoolTimeoutError)

# A transaction here is a few statements; one that waits longer than this is stuck behind something.
SESSION_OPTIONS = {
    "statement_timeout": "60s",
    "lock_timeout": "10s",
    "timezone": "UTC",
    # A client that takes nothing more, whose machine is gone perhaps, keeps its locks no longer than this.
    "tcp_user_timeout": "10s",
}
# Between two statements. What a worker that was stopped or cut off has locked, the others wait for.
IDLE_SECONDS = 5.0
KEEPALIVES: dict[str, Any] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,  # milliseconds
}


class Store:
    """A pool of connections to one database."""

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 10,
        idle_seconds: float = IDLE_SECONDS,
        transaction_seconds: float | None = None,
    ) -> None:
        options = SESSION_OPTIONS | {"idle_in_transaction_session_timeout": f"{round(idle_seconds * 1000)}ms"}
        self.engine: Engine = create_engine(
            url,
            pool_size=pool_size,
            max_overflow=10,
            pool_pre_ping=True,
            pool_timeout=10,
            hide_parameters=True,  # prompts and outputs do not belong in a log
            connect_args={
                "options": " ".join(f"-c {name}={value}" for name, value in options.items()),
                "connect_timeout": 5,
                "application_name": "headrace",
                **KEEPALIVES,
            },
        )
        if transaction_seconds is not None:
            event.listen(self.engine, "connect", partial(_limit_transactions, transaction_seconds))
        self._autocommit = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self._sessions = sessionmaker(self.engine, expire_on_commit=False)
        event.listen(self._sessions, "do_orm_execute", _show_only_own_rows)
        self.tenant_id: str | None = None  # whose rows it shows; None: everybody's

    def of_tenant(self, tenant_id: str) -> Self:
        """Return the same store as one tenant sees it: rows that belong to others are not there."""
        scoped = copy.copy(self)
        scoped.tenant_id = tenant_id
        return scoped

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Run one transaction: commit at the end of the block, roll back on any exception."""
        with self._sessions(info={"tenant_id": self.tenant_id}) as session:
            yield session
            session.commit()

    @contextmanager
    def look(self) -> Iterator[Session]:
        """Let a block read what stands now, without a transaction, whose begin and end are a round trip each.

        It sees what a transaction would, as those here are READ COMMITTED too.
        """
        with self._sessions(bind=self._autocommit, info={"tenant_id": self.tenant_id}) as session:
            yield session

    def close(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()


def _limit_transactions(seconds: float, connection: Any, _: object) -> None:
    # A session that waits for the rest of a message is not idle; this ends it too, from Postgres 17 on.
    if connection.info.server_version >= 170000:
        connection.autocommit = True  # what is set in a transaction goes with its rollback
        connection.execute(f"SET transaction_timeout = {round(seconds * 1000)}")
        connection.autocommit = False


def tenant_of(session: Session) -> str:
    """Return the tenant to whom new rows of this session belong."""
    return session.info.get("tenant_id") or DEFAULT_TENANT


def _show_only_own_rows(state: ORMExecuteState) -> None:
    tenant_id = state.session.info.get("tenant_id")
    if tenant_id is not None and not state.is_insert:
        state.statement = state.statement.options(
            with_loader_criteria(Owned, lambda table: table.tenant_id == tenant_id, include_aliases=True)
        )
