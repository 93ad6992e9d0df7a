"""Where a batch stands in line, and how much work would be done before it."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, Float, and_, cast, func, or_, select
from sqlalchemy.orm import Session

from worker.contract.messages import GPU_QUEUE
from worker.contract.states import BatchStatus
from worker.store.tables import BatchRow, WorkerRow
from worker.store.workers import is_live


@dataclass(frozen=True, slots=True)
class Ahead:
    """Live batches that go before one. Tokens are the most their requests may still generate."""

    num_batches: int
    num_requests: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """The live gpu workers that serve a model: `num_loading` have not loaded it yet."""

    num_ready: int
    num_loading: int
    num_others: int  # of other models
    tokens_per_second: float | None  # output, of those that have had work to measure it by; None: of none


def ahead_of(
    session: Session,
    *,
    priority: int,
    expires_at: datetime | None,
    batch_id: str | None = None,
    model: str | None = None,
) -> Ahead:
    """Return what tickets take before a batch: higher priority, then earlier deadline, then age.

    `batch_id=None` stands for a batch that would be submitted now; `model=None` for one that any worker runs.
    """
    goes_first = BatchRow.priority > priority
    same = BatchRow.priority == priority
    if expires_at is None:
        earlier: ColumnElement[bool] = BatchRow.expires_at.is_not(None)
        level: ColumnElement[bool] = BatchRow.expires_at.is_(None)
    else:
        earlier, level = BatchRow.expires_at < expires_at, BatchRow.expires_at == expires_at
    if batch_id is not None:
        created_at = select(BatchRow.created_at).where(BatchRow.id == batch_id).scalar_subquery()
        level = and_(level, BatchRow.created_at < created_at)
    settled = BatchRow.num_completed + BatchRow.num_failed + BatchRow.num_cancelled
    counted = select(
        func.count(),
        func.coalesce(func.sum(BatchRow.num_requests - settled), 0),
        func.coalesce(func.sum(BatchRow.max_output_tokens - BatchRow.settled_max_tokens), 0),
    ).where(
        BatchRow.status.in_([BatchStatus.PENDING, BatchStatus.PROCESSING]),
        BatchRow.paused_at.is_(None),
        or_(goes_first, and_(same, or_(earlier, level))),
    )
    if model is not None:
        is_beside = or_(BatchRow.model_fingerprint == model, BatchRow.model_fingerprint.is_(None))
        counted = counted.where(is_beside)
    if batch_id is not None:
        counted = counted.where(BatchRow.id != batch_id)
    return Ahead(*map(int, session.execute(counted).one()))


def capacity(session: Session, *, model: str | None = None) -> Capacity:
    """Return what the live gpu workers can do that serve a model; None: all of them."""
    rate = cast(WorkerRow.info["output_tokens_per_second"].astext, Float(53))
    serves = is_live(GPU_QUEUE, model)
    ready, loading, total, everybody = session.execute(
        select(
            func.count().filter(serves, WorkerRow.slots > 0),
            func.count().filter(serves, WorkerRow.slots == 0),
            func.coalesce(func.sum(rate).filter(serves), 0.0),
            func.count(),
        ).where(is_live(GPU_QUEUE))
    ).one()
    return Capacity(ready, loading, everybody - ready - loading, float(total) or None)


def usual_share(session: Session, *, model: str | None = None) -> float:
    """Return what share of `max_tokens` completed requests of late have used, 1 before there are any."""
    recent = (
        select(BatchRow.completed_output_tokens, BatchRow.num_completed, BatchRow.num_requests)
        .add_columns(BatchRow.max_output_tokens)
        .where(BatchRow.num_completed > 0, *([] if model is None else [BatchRow.model_fingerprint == model]))
        .order_by(BatchRow.created_at.desc())
        .limit(20)
        .subquery()
    )
    of_completed = (
        cast(recent.c.max_output_tokens, Float(53)) * recent.c.num_completed / recent.c.num_requests
    )
    share = session.scalar(select(func.sum(recent.c.completed_output_tokens) / func.sum(of_completed)))
    return 1.0 if share is None else min(1.0, float(share))


def read_clock(session: Session) -> datetime:
    """Return Postgres's time, the only one that counts."""
    return session.scalars(select(func.now())).one()
