import threading
from datetime import timedelta

from sqlalchemy import text

from worker.store.counts import meters
from worker.store.counts.measured import Measured
from worker.store.database.session import Store


def add(store: Store, worker: str, **readings: float) -> None:
    with store.transaction() as session:
        meters.add(session, worker, readings)


def measured(store: Store) -> Measured:
    with store.transaction() as session:
        return meters.measured(session, minutes=5)


def age(store: Store, by: timedelta) -> None:
    with store.transaction() as session:
        session.execute(text("UPDATE meters SET minute = minute - :by WHERE worker <> ''"), {"by": by})


def test_processes_and_minutes_add_up(store: Store) -> None:
    add(store, "a", steps=1, prefill_seconds=0.25)
    age(store, timedelta(hours=1))
    add(store, "a", steps=2)
    age(store, timedelta(minutes=2))
    add(store, "a", steps=4, prefill_seconds=0.5)
    add(store, "a", steps=8)
    add(store, "b", steps=16)
    found = measured(store)
    assert found.total == {"steps": 31, "prefill_seconds": 0.75}
    assert found.recent == {"steps": 30, "prefill_seconds": 0.5}
    assert 120 <= found.recent_seconds < 240
    assert [minute.readings["steps"] for minute in found.minutes] == [2, 28]


def test_nothing_measured_is_nothing(store: Store) -> None:
    found = measured(store)
    assert (found.total, found.recent, found.recent_seconds, list(found.minutes)) == ({}, {}, 0.0, [])


def test_folding_keeps_every_count(store: Store) -> None:
    for _ in range(3):
        add(store, "a", steps=1)
        add(store, "b", steps=2, decode_seconds=0.5)
        age(store, timedelta(hours=3))
        with store.transaction() as session:
            meters.fold_the_old(session)
        with store.transaction() as session:
            assert session.scalar(text("SELECT count(*) FROM meters")) == 1
    add(store, "a", steps=1)
    assert measured(store).total == {"steps": 10, "decode_seconds": 1.5}
    assert measured(store).recent == {"steps": 1}


def test_two_processes_of_one_name_lose_nothing(store: Store) -> None:
    threads = [threading.Thread(target=lambda: add(store, "same", steps=1)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert measured(store).total == {"steps": 8}
