"""Connections and transactions: the only commit in the product, and the only filter by tenant."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from sqlalchemy import create_engine, event
from sqlalchemy.engine import Engine
from sqlalchemy.orm import ORMExecuteState, Session, sessionmaker, with_loader_criteria

from worker.contract.access import DEFAULT_TENANT
from worker.store.schema import Owned

# A transaction here is a few statements; one that waits longer than this is stuck behind something.
CONNECTION_OPTIONS = " ".join(
    f"-c {name}={value}"
    for name, value in {
        "statement_timeout": "60s",
        "lock_timeout": "10s",
        "idle_in_transaction_session_timeout": "60s",
        "timezone": "UTC",
    }.items()
)


class Store:
    """A pool of connections to one database."""

    def __init__(self, url: str, *, pool_size: int = 10) -> None:
        self.engine: Engine = create_engine(
            url,
            pool_size=pool_size,
            max_overflow=10,
            pool_pre_ping=True,
            pool_timeout=10,
            hide_parameters=True,  # prompts and outputs do not belong in a log
            connect_args={
                "options": CONNECTION_OPTIONS,
                "connect_timeout": 5,
                "application_name": "headrace",
            },
        )
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

    def close(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()


def tenant_of(session: Session) -> str:
    """Return the tenant to whom new rows of this session belong."""
    return session.info.get("tenant_id") or DEFAULT_TENANT


def _show_only_own_rows(state: ORMExecuteState) -> None:
    tenant_id = state.session.info.get("tenant_id")
    if tenant_id is not None and not state.is_insert:
        state.statement = state.statement.options(
            with_loader_criteria(Owned, lambda table: table.tenant_id == tenant_id, include_aliases=True)
        )
