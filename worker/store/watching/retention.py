"""Drop requests and results of batches that ended long ago or were deleted, some at a time.

A batch that ended long ago keeps its own row, with its counts.
"""

from datetime import timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from worker.contract.access import NOBODY
from worker.contract.states import EventState, FilesStage
from worker.store.rows.batches import BatchRow
from worker.store.rows.files import BatchFilesRow
from worker.store.rows.requests import RequestRow
from worker.store.rows.responses import ResponseRow
from worker.store.rows.shards import ShardRow
from worker.store.rows.webhooks import DeliveryRow, WebhookEventRow

DELETED = select(BatchRow).where(BatchRow.tenant_id == NOBODY)


def drop_old_results(session: Session, *, kept_for: timedelta, limit: int) -> int:
    """Drop at most `limit` requests, with their results, of the batch that ended longest ago.

    Returns:
        The number dropped; 0: that batch had none left, or there is no such batch.

    """
    writes_files = select(BatchFilesRow.batch_id).where(
        BatchFilesRow.batch_id == BatchRow.id, BatchFilesRow.stage != FilesStage.DONE
    )
    batch = session.scalar(
        select(BatchRow)
        .where(
            BatchRow.finished_at.is_not(None),
            BatchRow.finished_at < func.now() - kept_for,
            BatchRow.results_dropped_at.is_(None),
            ~writes_files.exists(),
        )
        .order_by(BatchRow.finished_at)
        .limit(1)
        .with_for_update(key_share=True, skip_locked=True)
    )
    if batch is None:
        return 0
    num_dropped = _drop_requests(session, batch.id, limit)
    if num_dropped < limit:
        batch.results_dropped_at = func.now()
        session.execute(delete(ResponseRow).where(ResponseRow.batch_id == batch.id))
    return num_dropped


def drop_old_events(session: Session, *, kept_for: timedelta, limit: int) -> None:
    """Drop at most `limit` events older than `kept_for`, but none whose delivery goes on.

    The event of a small batch holds its outputs.
    """
    goes_on = select(DeliveryRow.id).where(
        DeliveryRow.event_id == WebhookEventRow.id,
        DeliveryRow.state.in_([EventState.PENDING, EventState.SENDING]),
    )
    old = (
        select(WebhookEventRow.id)
        .where(WebhookEventRow.created_at < func.now() - kept_for, ~goes_on.exists())
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    session.execute(delete(WebhookEventRow).where(WebhookEventRow.id.in_(old)))


def drop_deleted(session: Session, *, limit: int) -> int:
    """Drop at most `limit` requests, with their results, of a deleted batch, and finally the batch.

    Returns:
        The number of requests dropped.

    """
    batch = session.scalar(DELETED.limit(1).with_for_update(skip_locked=True))
    if batch is None:
        return 0
    num_dropped = _drop_requests(session, batch.id, limit)
    if num_dropped < limit:
        session.execute(delete(BatchRow).where(BatchRow.id == batch.id))
    return num_dropped


def _drop_requests(session: Session, batch_id: str, limit: int) -> int:
    """Drop the first `limit` requests of a batch; drop its shards with the last requests."""
    first = (
        select(RequestRow.id)
        .where(RequestRow.batch_id == batch_id)
        .order_by(RequestRow.position)
        .limit(limit)
    )
    dropped = session.scalars(
        delete(RequestRow).where(RequestRow.id.in_(first)).returning(RequestRow.id)
    ).all()
    if len(dropped) < limit:
        session.execute(delete(ShardRow).where(ShardRow.batch_id == batch_id))
    return len(dropped)
