"""Count waiting and running work, by the indexes of live rows."""

from dataclasses import dataclass

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from worker.contract.states import LIVE_STATUSES, BatchStatus, EventState, ShardState
from worker.store.rows.batches import BatchRow
from worker.store.rows.shards import ShardRow
from worker.store.rows.webhooks import DeliveryRow


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """Numbers of live rows by state."""

    batches: dict[str, int]
    shards_ready: int
    shards_running: int
    requests_pending: int
    deliveries_pending: int


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
