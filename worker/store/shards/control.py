"""Pauses, resumes and deletes batches, and cancels single requests, when a customer asks."""

from enum import Enum, auto

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from worker.contract.access import NOBODY
from worker.contract.states import ShardState
from worker.store.batches import batches, journal
from worker.store.counts import batch_counts
from worker.store.database.notify import wake_dispatcher, wake_workers
from worker.store.rows.batches import BatchRow, IdempotencyKeyRow
from worker.store.rows.experiments import ExperimentRow
from worker.store.rows.files import BatchFilesRow
from worker.store.rows.requests import RequestRow, ResultRow
from worker.store.rows.responses import ResponseRow
from worker.store.rows.shards import ShardRow
from worker.store.rows.webhooks import WebhookEventRow
from worker.store.shards import shards


class Done(Enum):
    """Outcome of a customer's call: done, or the reason why not."""

    YES = auto()
    NO_BATCH = auto()
    NO_REQUEST = auto()
    BATCH_IS_LIVE = auto()
    BATCH_HAS_ENDED = auto()


def pause(session: Session, batch_id: str) -> Done:
    """Pause a batch; its workers release its shards with their partial outputs.

    The completion window keeps running. A batch that was to start later waits until it is resumed.
    """
    batch = batches.lock(session, batch_id)
    if batch is None:
        return Done.NO_BATCH
    if batches.is_stopping(session, batch):
        return Done.BATCH_HAS_ENDED
    if batch.paused_at is None or batch.start_after is not None:
        journal.changed(session, "batch paused", batch)
        batch.paused_at = func.now()
        batch.start_after = None  # it does not start by itself any more
        batch.forecast_seconds = None  # its duration depends on the customer now
        session.flush()
        # Its tickets must not take other batches' places in the window.
        session.execute(
            update(ShardRow)
            .where(
                ShardRow.batch_id == batch_id,
                ShardRow.state == ShardState.READY,
                ShardRow.ticketed_at.is_not(None),
            )
            .values(ticketed_at=None)
        )
        wake_workers(session, batch_id)
    return Done.YES


def resume(session: Session, batch_id: str) -> Done:
    """Resume a paused batch, or start one that was to start later; another stays as it is."""
    batch = batches.lock(session, batch_id)
    if batch is None:
        return Done.NO_BATCH
    if batches.is_stopping(session, batch):
        return Done.BATCH_HAS_ENDED
    if batch.paused_at is not None:
        journal.changed(session, "batch resumed", batch)
    batch.paused_at = batch.start_after = None
    session.flush()
    wake_dispatcher(session)
    return Done.YES


def cancel_request(session: Session, batch_id: str, position: int) -> Done:
    """Cancel one request of a batch: at once if it waits, else within a Step. An existing result stays."""
    batch = batches.lock(session, batch_id)
    if batch is None:
        return Done.NO_BATCH
    found = session.execute(
        select(RequestRow, ResultRow.request_id, ShardRow.state)
        .join(ShardRow, ShardRow.id == RequestRow.shard_id)
        .outerjoin(ResultRow, ResultRow.request_id == RequestRow.id)
        .where(RequestRow.batch_id == batch_id, RequestRow.position == position)
        .with_for_update(of=ShardRow)
    ).one_or_none()
    if found is None:
        return Done.NO_REQUEST
    request, result_of, state = found
    if result_of == request.id:
        return Done.YES
    journal.changed(session, "request cancelled", batch, index=position, shard=request.shard_id)
    request.cancelled_at = func.now()
    batch.has_cancelled_requests = True
    session.flush()
    if state is ShardState.RUNNING:
        wake_workers(session, batch_id)
    else:
        shards.settle_cancelled_requests(session, batch, request.shard_id)
        batches.settle(session, batch)
    return Done.YES


def remove(session: Session, batch_id: str) -> Done:
    """Delete a batch that has ended, with its event and the event's deliveries.

    The batch belongs to no tenant from now on. `retention.drop_deleted` deletes its requests and results,
    perhaps a million, a part at a time.
    """
    batch = batches.lock(session, batch_id)
    if batch is None:
        return Done.NO_BATCH
    if not batch.status.is_terminal:
        return Done.BATCH_IS_LIVE
    journal.changed(session, "batch deleted", batch)
    batch_counts.add(session, batch, -1)
    batch.tenant_id = NOBODY
    its = update(ExperimentRow).where(ExperimentRow.batch_id == batch_id)
    session.execute(its.values(tenant_id=NOBODY, closed_at=None))  # the dispatcher drops it with its shadow
    session.flush()
    for table in (IdempotencyKeyRow, WebhookEventRow, BatchFilesRow, ResponseRow):
        session.execute(delete(table).where(table.batch_id == batch_id))
    session.execute(update(BatchRow).where(BatchRow.retry_of == batch_id).values(retry_of=None))
    return Done.YES
