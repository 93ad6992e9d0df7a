"""Count waiting and running work, by the indexes of live rows."""

from dataclasses import dataclass

from sqlalchemy import Double, Select, and_, cast, func, or_, select
from sqlalchemy.orm import Session

from worker.contract.messages import GPU_QUEUE
from worker.contract.models import label
from worker.contract.states import LIVE_STATUSES, BatchStatus, EventState, Lane, ShardState
from worker.store.rows.batches import BatchModelRow, BatchRow
from worker.store.rows.shards import ShardRow
from worker.store.rows.webhooks import DeliveryRow
from worker.store.watching import workers

ANY_MODEL = "any"


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Numbers of live rows by state."""

    batches: dict[str, int]
    shards_ready: int
    shards_running: int
    requests_pending: int
    deliveries_pending: int


@dataclass(frozen=True, slots=True)
class QueueAge:
    """How long the oldest waiting batch of a lane and model has waited."""

    lane: Lane
    model: str  # its label; "any" if any worker may run it
    seconds: float


def queue_ages(session: Session) -> list[QueueAge]:
    """Return the age of the oldest batch with a ready shard, by lane and model; 0 for an idle live model.

    Paused batches do not wait.
    """
    part = BatchModelRow
    name = func.coalesce(part.model_name, BatchRow.model_name)
    model = func.coalesce(part.model_fingerprint, BatchRow.model_fingerprint)
    ready = select(ShardRow.id).where(
        ShardRow.batch_id == BatchRow.id,
        ShardRow.state == ShardState.READY,
        or_(~BatchRow.is_mixed, ShardRow.model_fingerprint == part.model_fingerprint),
    )
    seconds = func.extract("epoch", func.max(func.now() - BatchRow.created_at))
    rows = session.execute(
        select(BatchRow.lane, name, model, cast(seconds, Double))
        .select_from(BatchRow)
        .outerjoin(part, and_(BatchRow.is_mixed, part.batch_id == BatchRow.id))
        .where(BatchRow.status.in_(LIVE_STATUSES), BatchRow.paused_at.is_(None), ready.exists())
        .group_by(BatchRow.lane, name, model)
    )
    served = {
        label(info["name"], info["model_fingerprint"])
        for info in workers.infos(session, GPU_QUEUE)
        if "model_fingerprint" in info
    }
    ages = {(lane, model): 0.0 for lane in Lane for model in served}
    for lane, called, fingerprint, age in rows:
        ages[lane, label(called, fingerprint) if called and fingerprint else ANY_MODEL] = age
    return [QueueAge(lane, model, age) for (lane, model), age in sorted(ages.items())]


def queue_depth(session: Session) -> QueueDepth:
    """Count the rows that wait or run now."""
    settled = BatchRow.num_completed + BatchRow.num_failed + BatchRow.num_cancelled
    rows = session.execute(
        select(BatchRow.status, func.count(), func.sum(BatchRow.num_requests - settled))
        .where(BatchRow.status.in_(LIVE_STATUSES))
        .group_by(BatchRow.status)
    ).all()
    live = {BatchStatus(status): (count, int(pending)) for status, count, pending in rows}
    return QueueDepth(
        batches={str(status): live.get(status, (0, 0))[0] for status in sorted(LIVE_STATUSES)},
        shards_ready=_count(session, select(func.count()).where(ShardRow.state == ShardState.READY)),
        shards_running=_count(session, select(func.count()).where(ShardRow.state == ShardState.RUNNING)),
        requests_pending=sum(pending for _, pending in live.values()),
        deliveries_pending=_count(
            session, select(func.count()).where(DeliveryRow.state == EventState.PENDING)
        ),
    )


def _count(session: Session, query: Select[int]) -> int:
    return session.scalar(query) or 0
