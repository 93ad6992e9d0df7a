"""Counts the batches that ended in each status: one row per end, folded from time to time into few.

No transaction updates a row that others need, so that no end of a batch delays another.
"""

from sqlalchemy import delete, func, insert, select
from sqlalchemy.orm import Session

from worker.contract.states import LIVE_STATUSES, BatchStatus, Lane
from worker.store.rows.batches import BatchRow
from worker.store.rows.counts import BatchCountRow

FOLD_AT_ONCE = 10_000
FOLD_FROM = 100  # fewer rows are read as fast as their sum


def add(session: Session, batch: BatchRow, count: int = 1) -> None:
    """Count an ended batch, or with -1 a deleted one; interactive batches are not counted."""
    if batch.lane is Lane.BATCH:
        session.execute(
            insert(BatchCountRow).values(tenant_id=batch.tenant_id, status=batch.status, count=count)
        )


def by_status(session: Session) -> dict[BatchStatus, int]:
    """Return the number of batches in each status, zeros included."""
    live = (
        select(BatchRow.status, func.count())
        .where(BatchRow.status.in_(LIVE_STATUSES), BatchRow.lane == Lane.BATCH)
        .group_by(BatchRow.status)
    )
    ended = select(BatchCountRow.status, func.sum(BatchCountRow.count)).group_by(BatchCountRow.status)
    found = {status: int(count) for query in (live, ended) for status, count in session.execute(query)}
    return dict.fromkeys(BatchStatus, 0) | found


def fold(session: Session) -> None:
    """Replace at most `FOLD_AT_ONCE` rows by their sums, unless there are fewer than `FOLD_FROM`."""
    some = (
        select(BatchCountRow.id)
        .order_by(BatchCountRow.id)
        .limit(FOLD_AT_ONCE)
        .with_for_update(skip_locked=True)
    )
    ids = session.scalars(some).all()
    if len(ids) < FOLD_FROM:
        return
    gone = (
        delete(BatchCountRow)
        .where(BatchCountRow.id.in_(ids))
        .returning(BatchCountRow.tenant_id, BatchCountRow.status, BatchCountRow.count)
        .cte("gone")
    )
    sums = select(gone.c.tenant_id, gone.c.status, func.sum(gone.c.count)).group_by(
        gone.c.tenant_id, gone.c.status
    )
    session.execute(insert(BatchCountRow).from_select(["tenant_id", "status", "count"], sums))
