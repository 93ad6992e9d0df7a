"""Which worker processes are alive, by their own word to Postgres."""

from datetime import timedelta
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from worker.store.tables import WorkerRow

SEEN_WITHIN = timedelta(seconds=15)
FORGET_AFTER = timedelta(days=1)


def seen(session: Session, *, name: str, queue: str, slots: int, info: dict[str, Any]) -> None:
    """Say that a worker is alive and able to work."""
    values = {"queue": queue, "slots": slots, "info": info, "seen_at": func.now()}
    statement = insert(WorkerRow).values(name=name, **values)
    session.execute(statement.on_conflict_do_update(index_elements=[WorkerRow.name], set_=values))


def gone(session: Session, name: str) -> None:
    """Say that a worker has stopped in good order."""
    session.execute(delete(WorkerRow).where(WorkerRow.name == name))


def slots(session: Session, queue: str) -> int:
    """Return how many tasks the live workers of a queue can run at once; 0 when there is none."""
    is_live = WorkerRow.seen_at > func.now() - SEEN_WITHIN
    total = select(func.coalesce(func.sum(WorkerRow.slots), 0)).where(WorkerRow.queue == queue, is_live)
    return int(session.scalar(total) or 0)


def count(session: Session, queue: str) -> int:
    """Return how many live workers a queue has."""
    is_live = WorkerRow.seen_at > func.now() - SEEN_WITHIN
    return session.scalar(select(func.count()).where(WorkerRow.queue == queue, is_live)) or 0


def infos(session: Session, queue: str) -> list[dict[str, Any]]:
    """Return what each live worker of a queue says of itself, the one that started first first."""
    is_live = WorkerRow.seen_at > func.now() - SEEN_WITHIN
    chosen = select(WorkerRow.info).where(WorkerRow.queue == queue, is_live).order_by(WorkerRow.started_at)
    return list(session.scalars(chosen))


def forget_the_dead(session: Session) -> None:
    """Drop workers that have not been seen for a day."""
    session.execute(delete(WorkerRow).where(WorkerRow.seen_at < func.now() - FORGET_AFTER))
