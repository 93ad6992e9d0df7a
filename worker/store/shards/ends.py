"""Tell how the run of a shard has ended: its results, and the state of its batch."""

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from worker.contract.states import BatchStatus
from worker.store.rows.batches import BatchRow
from worker.store.rows.requests import RequestRow, ResultRow
from worker.values.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class ShardEnd:
    """The results of a shard's requests by outcome, and the batch that it belongs to."""

    status: BatchStatus
    error_code: str | None  # why the batch failed, or is about to
    num_completed: int
    num_failed: int


def look(session: Session, shard_id: int, batch_id: str) -> ShardEnd | None:
    """Return the end of a shard's run; None: the batch is gone."""
    batch = session.get(BatchRow, batch_id)
    if batch is None:
        return None
    found = session.execute(
        select(ResultRow.outcome, func.count().label("num"))
        .join(RequestRow, RequestRow.id == ResultRow.request_id)
        .where(RequestRow.shard_id == shard_id)
        .group_by(ResultRow.outcome)
    )
    counts = {row.outcome: row.num for row in found}
    completed, failed = (counts.get(outcome, 0) for outcome in (Outcome.COMPLETED, Outcome.FAILED))
    return ShardEnd(batch.status, batch.error_code, completed, failed)
