import threading

from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from tests.fixtures.deployment import eventually
from worker.store.database.renewing import renewing
from worker.store.database.session import Store


def test_a_lease_is_renewed_while_the_block_runs_and_not_after(store: Store) -> None:
    renewed: list[Session] = []
    with renewing(store, renewed.append, every_seconds=0.01, at_most_seconds=60):
        eventually(lambda: len(renewed) > 2)
    assert "renewing" not in {thread.name for thread in threading.enumerate()}


def test_a_block_that_hangs_is_not_kept_for_ever(store: Store) -> None:
    renewed: list[Session] = []
    with renewing(store, renewed.append, every_seconds=0.01, at_most_seconds=0):
        eventually(lambda: "renewing" not in {thread.name for thread in threading.enumerate()})
    assert renewed == []


def test_a_database_that_is_away_does_not_end_it(store: Store) -> None:
    tries: list[int] = []

    def fails(_: Session) -> None:
        tries.append(1)
        raise OperationalError("SELECT 1", {}, Exception("the server is gone"))

    with renewing(store, fails, every_seconds=0.01, at_most_seconds=60):
        eventually(lambda: len(tries) > 2)
