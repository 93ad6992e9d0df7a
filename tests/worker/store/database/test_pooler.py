"""The store behind PgBouncer, which gives two sessions to all connections, one transaction at a time."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from tests.fixtures.batches import held, submit
from tests.fixtures.deployment import eventually
from tests.fixtures.pooler import needs_pgbouncer, pooler
from worker.preflight import ConfigurationError, check_postgres
from worker.settings import settings
from worker.store.batches import batches
from worker.store.database.notify import wake_dispatcher, wake_ups
from worker.store.database.session import DATABASE_AWAY, SESSION_OPTIONS, Store

pytestmark = needs_pgbouncer

SESSIONS = 2
TRANSACTION_TIMEOUT_FROM = 170000  # the version of Postgres


@pytest.fixture(scope="module")
def pooled_url(database_url: str) -> Iterator[str]:
    assert database_url  # it is migrated
    with pooler(settings().direct_url, sessions=SESSIONS) as running:
        yield str(make_url(running.url).set(drivername="postgresql+psycopg"))


@pytest.fixture
def pooled(store: Store, pooled_url: str) -> Iterator[Store]:
    assert store  # it is empty
    opened = Store(pooled_url, has_pooler=True, idle_seconds=60)
    yield opened
    opened.close()


def shown(store: Store, *names: str) -> list[list[str]]:
    """Return settings as a transaction has them, and a look, and the session in between."""
    found = []
    with store.transaction() as session:
        found.append([session.scalar(text(f"SHOW {name}")) for name in names])
    with store.look() as session:
        found.append([session.scalar(text(f"SHOW {name}")) for name in names])
    connection = store.engine.raw_connection()
    cursor = connection.cursor()
    found.append([cursor.execute(f"SHOW {name}").fetchone()[0] for name in names])
    connection.close()
    return found


def test_transactions_bring_their_limits_and_take_them_along(pooled_url: str) -> None:
    worker = Store(pooled_url, has_pooler=True, idle_seconds=3, transaction_seconds=9)
    options = {"statement_timeout": "1min", "lock_timeout": SESSION_OPTIONS["lock_timeout"]}
    options |= {"idle_in_transaction_session_timeout": "3s", "transaction_timeout": "9s"}
    with worker.look() as session:
        version = session.connection().connection.dbapi_connection.info.server_version
    if version < TRANSACTION_TIMEOUT_FROM:
        del options["transaction_timeout"]
    transaction, look, between = shown(worker, *options)
    assert transaction == look == list(options.values())
    assert set(between) == {"0"}
    worker.close()


def test_an_idle_transaction_ends_and_so_does_a_long_one(pooled: Store, pooled_url: str) -> None:
    batch_id = submit(pooled)
    stopped = Store(pooled_url, has_pooler=True, idle_seconds=0.2)
    slow = Store(pooled_url, has_pooler=True, transaction_seconds=0.2)

    def is_free() -> bool:
        with pooled.transaction() as session:
            return batches.lock(session, batch_id, skip_locked=True) is not None

    with stopped.transaction() as session:
        batches.lock(session, batch_id)
        eventually(is_free, what="the end of the idle transaction")
        with pytest.raises(DATABASE_AWAY):
            session.execute(text("SELECT 1"))
        session.rollback()
    with stopped.transaction() as session:
        assert batches.lock(session, batch_id) is not None
    with slow.transaction() as session:
        with pytest.raises(DATABASE_AWAY):
            session.execute(text("SELECT pg_sleep(50)"))
        session.rollback()
    stopped.close()
    slow.close()


def test_many_threads_share_two_sessions(pooled: Store) -> None:
    """No statement is prepared in a session that the next transaction does not get."""
    for _ in range(4):
        submit(pooled, num_requests=8, shard_size=1)
    threads = 8
    together = threading.Barrier(threads)

    def claim(number: int) -> set[int]:
        together.wait(60)
        for shard_id in range(number + 1, 33, threads):
            held(pooled, shard_id)
        pids = set()
        for _ in range(20):
            with pooled.look() as session:
                pids.add(session.scalar(text("SELECT pg_backend_pid()")))
        return pids

    with ThreadPoolExecutor(threads) as pool:
        used = set().union(*pool.map(claim, range(threads)))
    assert 0 < len(used) <= SESSIONS
    with pooled.transaction() as session:
        assert session.scalar(text("SELECT count(*) FROM shards WHERE state = 'running'")) == 32


def test_a_notification_from_a_look_arrives_at_a_direct_connection(pooled: Store) -> None:
    turns = wake_ups(settings().direct_url, every_seconds=120)
    next(turns)
    with pooled.look() as session:
        wake_dispatcher(session)
    next(turns)
    turns.close()


def test_a_transaction_that_fails_leaves_nothing(pooled: Store) -> None:
    with pooled.transaction() as session:
        session.execute(text("CREATE TABLE left_over (id int)"))
        session.rollback()
    with pooled.look() as session:
        assert session.scalar(text("SELECT to_regclass('left_over')")) is None


def test_a_pooler_without_a_way_round_it_is_refused(pooled_url: str) -> None:
    only = settings().model_copy(update={"database_url": pooled_url, "database_direct_url": None})
    with pytest.raises(ConfigurationError, match=r"^DATABASE_URL: .*set DATABASE_DIRECT_URL"):
        check_postgres(only)
    twice = make_url(pooled_url).set(username="another").render_as_string(hide_password=False)
    with pytest.raises(ConfigurationError, match=r"^DATABASE_DIRECT_URL: .*a pooler"):
        check_postgres(only.model_copy(update={"database_direct_url": twice}))
    other = make_url(settings().direct_url).set(database="template1").render_as_string(hide_password=False)
    with pytest.raises(ConfigurationError, match=r"^DATABASE_DIRECT_URL: this is another database"):
        check_postgres(only.model_copy(update={"database_direct_url": other}))
    check_postgres(only.model_copy(update={"database_direct_url": settings().direct_url}))
