"""Limit the deliveries to each receiver at once, and pause a failing receiver with a circuit breaker.

The state is in Postgres, so all callbacks workers share it. After `FAILURES_TO_PAUSE` failures in a row a
receiver is paused; after the pause one delivery is tried, and its outcome ends or renews the pause.
"""

from collections.abc import Iterable
from datetime import timedelta

from sqlalchemy import ColumnElement, case, delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from worker.contract.states import EventState
from worker.store.rows.webhooks import DeliveryRow, ReceiverRow

FAILURES_TO_PAUSE = 5
FIRST_PAUSE = timedelta(seconds=30)
LONGEST_PAUSE = timedelta(minutes=15)
FORGET_AFTER = timedelta(days=1)


def use(session: Session, keys: Iterable[str]) -> None:
    """Insert missing receivers. Locks no existing one, so a batch that ends waits for no receiver."""
    rows = [{"key": key} for key in sorted(set(keys))]
    session.execute(insert(ReceiverRow).values(rows).on_conflict_do_nothing())


def unpause(session: Session, keys: Iterable[str]) -> None:
    """End the pauses of receivers, so that a delivery is tried. Locks them until the transaction ends."""
    values = {"used_at": func.now(), "paused_until": None}
    for key in sorted(set(keys)):
        statement = insert(ReceiverRow).values(key=key)
        session.execute(statement.on_conflict_do_update(index_elements=[ReceiverRow.key], set_=values))


def room(most: int | ColumnElement[int]) -> ColumnElement[int]:
    """Return the SQL of a receiver's limit of deliveries at once: `most`, 1 if it fails, 0 while paused."""
    is_failing = ReceiverRow.num_failures >= FAILURES_TO_PAUSE
    return case((is_not_paused() & ~is_failing, most), (is_not_paused(), 1), else_=0)


def is_not_paused() -> ColumnElement[bool]:
    """Return the SQL condition that a receiver is not paused."""
    return or_(ReceiverRow.paused_until.is_(None), ReceiverRow.paused_until <= func.now())


def admit(session: Session, key: str, *, most: int) -> bool:
    """Lock a receiver until the transaction ends; return whether one more delivery may start."""
    allowed = session.scalar(select(room(most)).where(ReceiverRow.key == key).with_for_update())
    if not allowed:
        return False
    sending = select(func.count()).where(DeliveryRow.receiver == key, DeliveryRow.state == EventState.SENDING)
    return (session.scalar(sending) or 0) < allowed


def record(session: Session, key: str, *, is_healthy: bool) -> None:
    """Record a receiver's success or failure, and pause it after repeated failures. Locks its row."""
    failures = session.scalar(
        select(ReceiverRow.num_failures).where(ReceiverRow.key == key).with_for_update()
    )
    failures = 0 if is_healthy else (failures or 0) + 1
    pause = None
    if failures >= FAILURES_TO_PAUSE:
        doublings = min(failures - FAILURES_TO_PAUSE, 16)
        pause = func.now() + min(FIRST_PAUSE * 2**doublings, LONGEST_PAUSE)
    values = {"num_failures": failures, "paused_until": pause, "used_at": func.now()}
    session.execute(update(ReceiverRow).where(ReceiverRow.key == key).values(**values))


def forget_the_idle(session: Session) -> None:
    """Drop receivers that were not used for FORGET_AFTER and that no delivery waits for.

    A receiver dropped while a concurrent transaction relied on it is inserted again by the next call.
    """
    waiting = select(DeliveryRow.receiver).where(
        DeliveryRow.state.in_([EventState.PENDING, EventState.SENDING])
    )
    is_waited_for = waiting.where(DeliveryRow.receiver == ReceiverRow.key).exists()
    session.execute(
        delete(ReceiverRow).where(ReceiverRow.used_at < func.now() - FORGET_AFTER, ~is_waited_for)
    )
    missing = waiting.where(DeliveryRow.receiver.not_in(select(ReceiverRow.key))).distinct()
    session.execute(insert(ReceiverRow).from_select(["key"], missing).on_conflict_do_nothing())
