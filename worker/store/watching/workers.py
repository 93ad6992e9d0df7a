"""Which worker processes are alive, by their own word to Postgres."""

from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from worker.store.rows.workers import WorkerRow

SEEN_WITHIN = timedelta(seconds=15)
# Each process has a row of its own, so those that end without a word leave one each.
FORGET_AFTER = timedelta(minutes=10)


def seen(
    session: Session, *, name: str, queue: str, slots: int, info: dict[str, Any], model: str | None = None
) -> None:
    """Say that a worker is alive and able to work, for this model."""
    values = {"queue": queue, "slots": slots, "info": info, "model_fingerprint": model, "seen_at": func.now()}
    statement = insert(WorkerRow).values(name=name, **values)
    session.execute(statement.on_conflict_do_update(index_elements=[WorkerRow.name], set_=values))


def gone(session: Session, name: str) -> None:
    """Say that a worker has stopped in good order."""
    session.execute(delete(WorkerRow).where(WorkerRow.name == name))


def slots(session: Session, queue: str, *, model: str | None = None) -> int:
    """Return how many tasks the live workers of a queue can run at once; 0 when there is none.

    All of them, or those that serve a model.
    """
    total = select(func.coalesce(func.sum(WorkerRow.slots), 0)).where(is_live(queue, model))
    return int(session.scalar(total) or 0)


def count(session: Session, queue: str, *, model: str | None = None) -> int:
    """Return how many live workers a queue has: all of them, or those that serve a model."""
    return session.scalar(select(func.count()).where(is_live(queue, model))) or 0


def infos(session: Session, queue: str, *, model: str | None = None) -> list[dict[str, Any]]:
    """Return what each live worker of a queue says of itself, the one that started first first."""
    chosen = select(WorkerRow.info).where(is_live(queue, model)).order_by(WorkerRow.started_at)
    return list(session.scalars(chosen))


def models(session: Session, queue: str) -> list[str]:
    """Return the fingerprints of the models that live workers of a queue are ready to run."""
    is_ready = (is_live(queue), WorkerRow.slots > 0, WorkerRow.model_fingerprint.is_not(None))
    found = select(WorkerRow.model_fingerprint).where(*is_ready).distinct()
    return sorted(one for one in session.scalars(found) if one is not None)


def is_live(queue: str, model: str | None = None) -> ColumnElement[bool]:
    """Return the condition of a queue's workers that were seen lately, and run a model if one is named.

    Who names none is of a release that runs whatever it gets.
    """
    found = and_(WorkerRow.queue == queue, WorkerRow.seen_at > func.now() - SEEN_WITHIN)
    if model is None:
        return found
    return and_(found, or_(WorkerRow.model_fingerprint == model, WorkerRow.model_fingerprint.is_(None)))


def forget_the_dead(session: Session) -> None:
    """Drop workers that have not been seen for a while."""
    session.execute(delete(WorkerRow).where(WorkerRow.seen_at < func.now() - FORGET_AFTER))
