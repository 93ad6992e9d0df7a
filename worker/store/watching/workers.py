"""Track which worker processes are alive, by their heartbeats in Postgres."""

from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, delete, exists, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from worker.contract.messages import GPU_QUEUE
from worker.contract.processes import MODELS, SWITCHING, ModelState
from worker.store.database.notify import CLEAR_CACHES, wake_workers
from worker.store.rows.workers import WorkerRow

SEEN_WITHIN = timedelta(seconds=15)
# Each process has its own row, which stays behind if the process dies.
FORGET_AFTER = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class LiveProcess:
    """A process that was seen lately."""

    name: str
    queue: str  # or the name of a process that serves none
    slots: int
    info: dict[str, Any]


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


def may_load(session: Session, model: str) -> bool:
    """Return whether a live process loads this model when its turn comes, whatever its worker runs now."""
    is_seen = (WorkerRow.queue == SWITCHING, WorkerRow.seen_at > func.now() - SEEN_WITHIN)
    its = WorkerRow.info[MODELS].has_key(model)
    return bool(session.scalar(select(exists().where(*is_seen, its))))


def state_of(session: Session, model: str) -> ModelState:
    """Return what live workers have of a model."""
    if slots(session, GPU_QUEUE, model=model):
        return ModelState.LOADED
    if count(session, GPU_QUEUE, model=model):
        return ModelState.LOADING
    return ModelState.UNLOADED if may_load(session, model) else ModelState.UNSERVED


def count(session: Session, queue: str, *, model: str | None = None) -> int:
    """Count the live workers of a queue: all of them, or those that serve `model`."""
    return session.scalar(select(func.count()).where(is_live(queue, model))) or 0


def infos(session: Session, queue: str, *, model: str | None = None) -> list[dict[str, Any]]:
    """Return the info of each live worker of a queue, in the order of their starts."""
    return list(session.scalars(_infos(queue, model)))


@cache
def _infos(queue: str, model: str | None) -> Select[dict[str, Any]]:
    return select(WorkerRow.info).where(is_live(queue, model)).order_by(WorkerRow.started_at)


def live(session: Session, queue: str | None = None) -> list[LiveProcess]:
    """Return the live processes of a queue, or all that send heartbeats, by queue and name."""
    columns = (WorkerRow.name, WorkerRow.queue, WorkerRow.slots, WorkerRow.info)
    is_wanted = WorkerRow.seen_at > func.now() - SEEN_WITHIN if queue is None else is_live(queue)
    rows = session.execute(select(*columns).where(is_wanted).order_by(WorkerRow.queue, WorkerRow.name))
    return [LiveProcess(*row) for row in rows]


def ask_to_clear_caches(session: Session) -> int:
    """Have every live gpu worker clear its prefix cache, now or at its next heartbeat; return how many do."""
    asked = (
        update(WorkerRow).where(is_live(GPU_QUEUE)).values(must_clear_cache=True).returning(WorkerRow.name)
    )
    names = session.scalars(asked).all()
    wake_workers(session, CLEAR_CACHES)
    return len(names)


def must_clear_cache(session: Session, name: str) -> bool:
    """Return whether a worker was asked to clear its prefix cache since the last call."""
    asked = WorkerRow.must_clear_cache.is_(True)
    taken = update(WorkerRow).where(WorkerRow.name == name, asked).values(must_clear_cache=False)
    return session.scalar(taken.returning(WorkerRow.name)) is not None


def slots_by_model(session: Session, queue: str) -> dict[str | None, int]:
    """Return how many tasks live workers of a queue can run at once, by the model they are ready to run.

    None stands for all of them together.
    """
    found = select(WorkerRow.model_fingerprint, func.sum(WorkerRow.slots)).where(is_live(queue))
    of = {model: int(total) for model, total in session.execute(found.group_by(WorkerRow.model_fingerprint))}
    of_any = of.pop(None, 0)
    ready = {model: total + of_any for model, total in of.items() if total > 0}
    return {None: sum(of.values()) + of_any, **ready}


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
