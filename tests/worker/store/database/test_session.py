"""Connections that Postgres ends while they wait in the pool."""

import pytest
from sqlalchemy import text

from worker.store.database import session as sessions
from worker.store.database.session import DATABASE_AWAY, Store


def end_the_only_connection(store: Store) -> None:
    with store.transaction() as session:
        pid = session.scalar(text("SELECT pg_backend_pid()"))
    other = Store(store.engine.url.render_as_string(hide_password=False), pool_size=1)
    with other.look() as session:
        session.execute(text(f"SELECT pg_terminate_backend({pid}, 5000)"))
    other.close()


def test_a_connection_that_waited_is_asked_before_it_is_used(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "TRUSTED_SECONDS", 0.0)
    end_the_only_connection(store)
    with store.transaction() as session:
        assert session.scalar(text("SELECT 1")) == 1


def test_one_that_was_just_used_may_fail_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "TRUSTED_SECONDS", 60.0)
    end_the_only_connection(store)
    with pytest.raises(DATABASE_AWAY), store.transaction() as session:
        session.scalar(text("SELECT 1"))
    with store.look() as session:
        assert session.scalar(text("SELECT 1")) == 1
