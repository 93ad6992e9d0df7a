"""Requests and results of batches that ended long ago go; the batch's own row stays, with its counts."""

from datetime import timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from worker.contract.states import EventState
from worker.store.tables import BatchRow, RequestRow, ShardRow, WebhookEventRow


def drop_old_results(session: Session, *, kept_for: timedelta, limit: int) -> int:
    """Drop at most `limit` requests, with their results, of the batch whose end is the longest ago.

    Returns:
        How many were dropped; 0: no batch that ended before `kept_for` has any left.

    """
    batch = session.scalar(
        select(BatchRow)
        .where(
            BatchRow.finished_at.is_not(None),
            BatchRow.finished_at < func.now() - kept_for,
            BatchRow.results_dropped_at.is_(None),
        )
        .order_by(BatchRow.finished_at)
        .limit(1)
        .with_for_update(key_share=True, skip_locked=True)
    )
    if batch is None:
        return 0
    oldest = (
        select(RequestRow.id)
        .where(RequestRow.batch_id == batch.id)
        .order_by(RequestRow.position)
        .limit(limit)
    )
    dropped = session.scalars(
        delete(RequestRow).where(RequestRow.id.in_(oldest)).returning(RequestRow.id)
    ).all()
    if len(dropped) < limit:
        session.execute(delete(ShardRow).where(ShardRow.batch_id == batch.id))
        # Small batches travel in their event; one that is still being delivered stays until it is over.
        over = WebhookEventRow.state.in_([EventState.DELIVERED, EventState.FAILED])
        session.execute(delete(WebhookEventRow).where(WebhookEventRow.batch_id == batch.id, over))
        batch.results_dropped_at = func.now()
    return len(dropped)
