"""Read what the scaling policy needs, and publish what it decides."""

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Double, and_, case, cast, delete, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from worker.contract.messages import GPU_QUEUE
from worker.contract.states import LIVE_STATUSES, BatchStatus, Lane, ShardState
from worker.scaling.model_choice import ModelWork
from worker.store.requests import batch_models
from worker.store.rows.batches import BatchModelRow, BatchRow
from worker.store.rows.scaling import WantedWorkersRow
from worker.store.rows.shards import ShardRow
from worker.store.rows.views import view_of
from worker.store.rows.workers import WorkerRow
from worker.store.watching.workers import is_live


@dataclass(frozen=True, slots=True)
class WantedWorkers:
    """The wanted number of gpu workers of a model, and what it was decided by."""

    model_fingerprint: str
    model_name: str
    wanted: int
    on_demand: int
    spot: int
    num_ready: int
    num_loading: int
    num_requests: int
    num_tokens: int
    work_seconds: float
    due_at: datetime | None
    engine: dict[str, Any] | None
    cold_start_seconds: float | None
    short_since: datetime | None
    decided_at: datetime


@dataclass(frozen=True, slots=True)
class GpuWorker:
    """A live gpu worker."""

    name: str
    info: dict[str, Any]
    is_ready: bool
    is_busy: bool  # it holds a shard
    age_seconds: float


@dataclass(frozen=True, slots=True)
class WaitingModel:
    """A model that live batches wait for."""

    fingerprint: str
    name: str
    is_interactive: bool  # a client waits for one of them


def waiting_models(session: Session) -> list[WaitingModel]:
    """Return the models of live batches that are not paused."""
    part = BatchModelRow
    model = func.coalesce(part.model_fingerprint, BatchRow.model_fingerprint)
    found = session.execute(
        select(
            model,
            func.max(func.coalesce(part.model_name, BatchRow.model_name)),
            func.bool_or(BatchRow.lane == Lane.INTERACTIVE),
        )
        .select_from(BatchRow)
        .outerjoin(part, and_(BatchRow.is_mixed, part.batch_id == BatchRow.id))
        .where(
            BatchRow.status.in_(LIVE_STATUSES),
            BatchRow.paused_at.is_(None),
            model.is_not(None),
            or_(~BatchRow.is_mixed, batch_models.num_left(part) > 0),
        )
        .group_by(model)
    )
    return [WaitingModel(str(fingerprint), str(name), bool(waits)) for fingerprint, name, waits in found]


def work_of(
    session: Session, models: Collection[str], *, target_seconds: float, worker: str | None
) -> dict[str, ModelWork]:
    """Return what waits for a worker of each of these models, or is held by `worker`.

    A batch without a deadline is due `target_seconds` after its start, and what a client waits for at once.
    """
    begun = func.greatest(BatchRow.created_at, BatchRow.start_after)
    due = case(
        (ShardRow.lane == Lane.INTERACTIVE, BatchRow.created_at),
        else_=func.coalesce(BatchRow.expires_at, begun + timedelta(seconds=target_seconds)),
    )
    is_held = and_(ShardRow.state == ShardState.RUNNING, ShardRow.worker == worker)
    rows = session.execute(
        select(
            ShardRow.model_fingerprint,
            cast(func.extract("epoch", func.min(due) - func.now()), Double),
            func.bool_or(ShardRow.lane == Lane.INTERACTIVE),
        )
        .join(BatchRow, BatchRow.id == ShardRow.batch_id)
        .where(
            ShardRow.model_fingerprint.in_(models),
            or_(ShardRow.state == ShardState.READY, is_held),
            BatchRow.status.in_([BatchStatus.PENDING, BatchStatus.PROCESSING]),
            BatchRow.paused_at.is_(None),
        )
        .group_by(ShardRow.model_fingerprint)
    )
    return {fingerprint: ModelWork(due_seconds, waits) for fingerprint, due_seconds, waits in rows}


def gpu_workers(session: Session, *, model: str | None = None) -> list[GpuWorker]:
    """Return the live gpu workers, or those that serve a model, in the order of their starts."""
    holds = (
        select(ShardRow.id)
        .where(ShardRow.worker == WorkerRow.name, ShardRow.state == ShardState.RUNNING)
        .exists()
    )
    age = cast(func.extract("epoch", func.now() - WorkerRow.started_at), Double)
    rows = session.execute(
        select(WorkerRow.name, WorkerRow.info, WorkerRow.slots > 0, holds, age)
        .where(is_live(GPU_QUEUE, model))
        .order_by(WorkerRow.started_at, WorkerRow.name)
    )
    return [GpuWorker(*row) for row in rows]


def published(session: Session) -> list[WantedWorkers]:
    """Return the last decision on each model, by its name."""
    rows = session.scalars(
        select(WantedWorkersRow).order_by(WantedWorkersRow.model_name, WantedWorkersRow.model_fingerprint)
    )
    return [view_of(WantedWorkers, row) for row in rows]


def publish(session: Session, decisions: Sequence[WantedWorkers]) -> None:
    """Store decisions in place of earlier ones on these models."""
    for decision in decisions:
        statement = insert(WantedWorkersRow).values(asdict(decision))
        session.execute(
            statement.on_conflict_do_update(
                index_elements=[WantedWorkersRow.model_fingerprint], set_=asdict(decision)
            )
        )


def withdraw(session: Session) -> None:
    """Delete all decisions."""
    session.execute(delete(WantedWorkersRow))
