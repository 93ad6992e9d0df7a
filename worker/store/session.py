"""Connections and transactions: the only commit in the product."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import create_engine
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session, sessionmaker

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

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """Run one transaction: commit at the end of the block, roll back on any exception."""
        with self._sessions() as session:
            yield session
            session.commit()

    def close(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()
