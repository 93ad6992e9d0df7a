"""Track which worker processes are alive, by their heartbeats in Postgres."""

from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from worker.store.rows.workers import WorkerRow

SEEN_WITHIN = timedelta(seconds=15)
# Each process has its own row, which stays behind if the process dies.
FORGET_AFTER = timedelta(minutes=10)


def seen(
    session: Session, *, name: str, queue: str, slots: int, info: dict[str, Any], model: str | None = None
) -> None:
    """Record a worker's heartbeat, with its slots, its info and the model that it serves."""
    values = {"queue": queue, "slots": slots, "info": info, "model_fingerprint": model, "seen_at": func.now()}
    statement = insert(WorkerRow).values(name=name, **values)
    session.execute(statement.on_conflict_do_update(index_elements=[WorkerRow.name], set_=values))


def gone(session: Session, name: str) -> None:
    """Delete the row of a worker that has stopped in good order."""
    session.execute(delete(WorkerRow).where(WorkerRow.name == name))


def slots(session: Session, queue: str, *, model: str | None = None) -> int:
    """Return how many tasks the live workers of a queue can run at once; 0 if there is none.

    Counts all of them, or those that serve `model`.
    """
    total = select(func.coalesce(func.sum(WorkerRow.slots), 0)).where(is_live(queue, model))
    return int(session.scalar(total) or 0)


def count(session: Session, queue: str, *, model: str | None = None) -> int:
    """Count the live workers of a queue: all of them, or those that serve `model`."""
    return session.scalar(select(func.count()).where(is_live(queue, model))) or 0


def infos(session: Session, queue: str, *, model: str | None = None) -> list[dict[str, Any]]:
    """Return the info of each live worker of a queue, in the order of their starts."""
    chosen = select(WorkerRow.info).where(is_live(queue, model)).order_by(WorkerRow.started_at)
    return list(session.scalars(chosen))


def models(session: Session, queue: str) -> list[str]:
    """Return the fingerprints of the models that live workers of a queue are ready to run."""
    is_ready = (is_live(queue), WorkerRow.slots > 0, WorkerRow.model_fingerprint.is_not(None))
    found = select(WorkerRow.model_fingerprint).where(*is_ready).distinct()
    return sorted(one for one in session.scalars(found) if one is not None)


def is_live(queue: str, model: str | None = None) -> ColumnElement[bool]:
    """Return the SQL condition for a queue's live workers, only those that run `model` if it is given.

    A worker that names no model is of an older release, which runs whatever it gets.
    """
    found = and_(WorkerRow.queue == queue, WorkerRow.seen_at > func.now() - SEEN_WITHIN)
    if model is None:
        return found
    return and_(found, or_(WorkerRow.model_fingerprint == model, WorkerRow.model_fingerprint.is_(None)))


def forget_the_dead(session: Session) -> None:
    """Drop workers that have not been seen for FORGET_AFTER."""
    session.execute(delete(WorkerRow).where(WorkerRow.seen_at < func.now() - FORGET_AFTER))
