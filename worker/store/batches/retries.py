"""Retries the failed requests of an ended batch as a new batch that is linked to it (docs/decisions/0010)."""

from typing import Any
from uuid import uuid4

from sqlalchemy import Select, func, insert, literal, null, select
from sqlalchemy.orm import Session

from worker.contract.states import FilesStage, Lane
from worker.store.batches import batches, copying, journal
from worker.store.database.notify import wake_dispatcher
from worker.store.requests import batch_models, timeouts
from worker.store.rows.batches import BatchRow
from worker.store.rows.files import BatchFilesRow
from worker.store.rows.requests import RequestRow, ResultRow
from worker.store.rows.shards import ShardRow
from worker.store.rows.table import Copier, columns_copied_by
from worker.store.tenants import quotas
from worker.store.tenants.quotas import Demand
from worker.values.outcomes import Outcome


class NothingToRetryError(Exception):
    """The batch has no requests to retry."""


class StillRunsError(Exception):
    """The batch has not ended: more of its requests may still fail."""


def retry(session: Session, batch_id: str, *, with_cancelled: bool, shard_size: int) -> str | None:
    """Submit the failed requests of an ended batch again; return the new batch's id, None for no such batch.

    `with_cancelled` also retries requests that were cancelled or expired. A new completion window starts, as
    long as the old one.

    Raises:
        StillRunsError: the batch has not ended.
        NothingToRetryError: the batch has no requests to retry.
        QuotaExceededError: the requests exceed what the tenant may have now.

    """
    batch = batches.lock(session, batch_id)
    if batch is None:
        return None
    if not batch.status.is_terminal:
        raise StillRunsError(batch_id)
    outcomes = [Outcome.FAILED, *([Outcome.CANCELLED] if with_cancelled else [])]
    chosen = (
        select(RequestRow.id)
        .join(ResultRow, ResultRow.request_id == RequestRow.id)
        .where(RequestRow.batch_id == batch_id, ResultRow.outcome.in_(outcomes), ~RequestRow.is_wrong_line)
    )
    sums = copying.sums_of(session, chosen)
    if not sums["num_requests"]:
        raise NothingToRetryError(batch_id)
    tokens = sums["num_prompt_tokens"] + sums["max_output_tokens"]
    quotas.check(session, Demand(sums["num_requests"], tokens, sums["stored_bytes"]))
    new = _copy_batch(session, batch, sums)
    _copy_models(session, batch, new, chosen)
    _copy_files(session, batch.id, new.id)
    first_positions = copying.add_shards(session, new, chosen, shard_size=shard_size)
    copying.copy_requests(session, chosen, new, first_positions, shard_size=shard_size)
    timeouts.note(session, select(ShardRow.id).where(ShardRow.batch_id == new.id))
    wake_dispatcher(session)
    journal.accepted(session, new.id, Lane.BATCH, new.num_requests, new.priority, retry_of=batch_id)
    return new.id


def _copy_batch(session: Session, batch: BatchRow, sums: dict[str, int]) -> BatchRow:
    """Insert a batch with what the customer asked for, over so many requests."""
    began_at = max(filter(None, (batch.created_at, batch.start_after)))
    window = None if batch.expires_at is None else batch.expires_at - began_at
    own = {
        "id": f"batch_{uuid4().hex}",
        "retry_of": batch.id,
        "expires_at": null() if window is None else func.now() + window,
    }
    return copying.copy_batch(session, batch, own | sums)


def _copy_models(session: Session, batch: BatchRow, new: BatchRow, chosen: Select[int]) -> None:
    """Store how many of the chosen requests each model has to run, if the old batch is mixed."""
    if not batch.is_mixed:
        return
    new.is_mixed = True
    session.flush()
    for row in batch_models.rows(session, [batch.id])[batch.id]:
        its = chosen.join(ShardRow, ShardRow.id == RequestRow.shard_id)
        sums = copying.sums_of(session, its.where(ShardRow.model_fingerprint == row.model_fingerprint))
        if sums["num_requests"]:
            batch_models.count(session, new.id, batch_models.model_of(row), sums)


def _copy_files(session: Session, batch_id: str, new_id: str) -> None:
    """Have the results of the new batch written to files, if the old one's were."""
    kept = columns_copied_by(Copier.RETRY, BatchFilesRow)
    own: dict[str, Any] = {"batch_id": literal(new_id), "stage": literal(FilesStage.RUNNING.value)}
    own["read_at"] = func.now()
    session.execute(
        insert(BatchFilesRow).from_select(
            [*own, *kept],
            select(*own.values(), *(getattr(BatchFilesRow, name) for name in kept)).where(
                BatchFilesRow.batch_id == batch_id
            ),
        )
    )
