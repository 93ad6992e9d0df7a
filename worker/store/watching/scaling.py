"""Read what the scaling policy needs, and publish what it decides."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Double, cast, delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from worker.contract.messages import GPU_QUEUE
from worker.contract.states import LIVE_STATUSES, Lane, ShardState
from worker.store.rows.batches import BatchRow
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
    found = session.execute(
        select(
            BatchRow.model_fingerprint,
            func.max(BatchRow.model_name),
            func.bool_or(BatchRow.lane == Lane.INTERACTIVE),
        )
        .where(
            BatchRow.status.in_(LIVE_STATUSES),
            BatchRow.paused_at.is_(None),
            BatchRow.model_fingerprint.is_not(None),
        )
        .group_by(BatchRow.model_fingerprint)
    )
    return [WaitingModel(str(fingerprint), str(name), bool(waits)) for fingerprint, name, waits in found]


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
