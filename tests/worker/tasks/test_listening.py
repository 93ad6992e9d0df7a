import threading
from typing import cast

from sqlalchemy import text

from tests.fixtures.batches import submit
from tests.fixtures.deployment import eventually
from worker.runs.shard_runner import ShardRunner
from worker.settings import settings
from worker.store.batches import batches
from worker.store.database.session import Store
from worker.store.shards import control
from worker.tasks.listening import listen


class Heard:
    def __init__(self) -> None:
        self.batch_ids: list[str] = []

    def batch_changed(self, batch_id: str) -> None:
        self.batch_ids.append(batch_id)


def test_what_changes_a_batch_reaches_the_runner_also_after_the_connection_was_lost(store: Store) -> None:
    heard, stopping = Heard(), threading.Event()
    thread = listen(settings().direct_url, (cast("ShardRunner", heard),), stopping, worker="gpu@test")
    paused, cancelled = submit(store), submit(store)
    listens = (
        "SELECT pid FROM pg_stat_activity"
        " WHERE query LIKE 'SELECT pg_advisory_lock_shared%' AND datname = current_database()"
    )

    def listeners() -> list[int]:
        with store.transaction() as session:
            return list(session.scalars(text(listens)))

    (first,) = eventually(listeners)
    with store.transaction() as session:
        control.pause(session, paused)
    eventually(lambda: heard.batch_ids == [paused])
    with store.transaction() as session:
        session.execute(text(f"SELECT pg_terminate_backend({first})"))
    eventually(lambda: listeners() not in ([], [first]))
    with store.transaction() as session:
        batches.cancel(session, cancelled)
    eventually(lambda: heard.batch_ids == [paused, cancelled])
    stopping.set()
    thread.join(60)
    assert not thread.is_running
