"""Submits and cancels batches, and settles each into its one terminal state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import bindparam, exists, func, insert, select, update
from sqlalchemy.orm import Session

from worker.contract.distributions import reading_name
from worker.contract.models import Model
from worker.contract.states import LIVE_STATUSES, BatchStatus, Lane, ShardState
from worker.contract.usage import BATCHES_ENDED
from worker.store.batches import journal, placing, starts, wrong_requests
from worker.store.counts import batch_counts, usage
from worker.store.database.notify import wake_dispatcher, wake_files, wake_interactive, wake_workers
from worker.store.database.session import tenant_of
from worker.store.requests import batch_models, missing, models, tally
from worker.store.requests.requests import NewRequest
from worker.store.rows.batches import BatchRow
from worker.store.rows.shards import ShardRow
from worker.store.tenants import quotas
from worker.store.tenants.quotas import Demand
from worker.store.webhooks import webhooks
from worker.values.caching import CacheMode
from worker.values.outcomes import Outcome
from worker.values.results import RequestError
from worker.values.sampling import SamplingParams

OPEN = (ShardState.READY, ShardState.RUNNING)
# Shards of a stopping batch that one transaction drops; a large batch takes several transactions.
DROP_AT_ONCE = 400
STOPPING = select(BatchRow).where(
    BatchRow.status.in_(LIVE_STATUSES),
    (BatchRow.status == BatchStatus.CANCELLING) | (BatchRow.expires_at <= func.now()),
)

_ROW = select(BatchRow).where(BatchRow.id == bindparam("id")).execution_options(populate_existing=True)
_LOCK = _ROW.with_for_update(key_share=True)
_TRY_TO_LOCK = _ROW.with_for_update(key_share=True, skip_locked=True)


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch to submit. `requests` is not empty."""

    params: SamplingParams
    requests: Sequence[NewRequest]
    callback_url: str | None = None
    priority: int = 0
    name: str | None = None
    metadata: dict[str, Any] | None = None
    start_after: datetime | None = None  # None: at once
    completion_window: timedelta | None = None  # from its start
    deadline: datetime | None = None  # instead of `completion_window`
    max_failed: int | None = None
    max_total_tokens: int | None = None
    lane: Lane = Lane.BATCH
    cache: CacheMode = CacheMode.OFF
    cache_similarity: float | None = None  # None: the worker's
    cache_ttl_seconds: float | None = None  # None: the deployment's
    model: Model | None = None  # of requests that name none; None: any
    endpoint: str | None = None  # whose bodies its requests have; None: the plain API's
    forecast_seconds: float | None = None  # from submission to end; None: unknown
    id: str | None = None  # None: `submit` makes one


def new_id() -> str:
    """Return an id for a batch that is not yet submitted."""
    return f"batch_{uuid4().hex}"


def submit(
    session: Session, batch: NewBatch, *, shard_size: int, digests: Sequence[bytes | None] | None = None
) -> str:
    """Write the batch, its shards and its requests; return the batch's id. The caller commits.

    A request with an error fails at once. `digests` holds `digest_of` each request, if the caller has them.

    Raises:
        QuotaExceededError: the batch exceeds what its tenant may have now.

    """
    batch_id = batch.id or new_id()
    is_mixed = len(batch_models.of_requests(batch.requests, batch.model)) > 1
    expires_at = _insert(session, batch, batch_id, is_mixed=is_mixed)
    if is_mixed and batch.model is not None:
        batch_models.add(session, batch_id, batch.requests, own=batch.model, batch_params=batch.params)
    row = None
    joined: Sequence[int | None] = [None] * len(batch.requests)
    if any(request.error is not None for request in batch.requests) and (row := lock(session, batch_id)):
        joined = wrong_requests.apart(session, row, batch.requests, joined)
    shard_ids = placing.add_shards(
        session,
        batch_id,
        batch.requests,
        batch_params=batch.params,
        shard_size=shard_size,
        priority=batch.priority,
        expires_at=expires_at,
        model_fingerprint=None if batch.model is None else batch.model.fingerprint,
        lane=batch.lane,
        digests=digests,
        joined=joined,
    )
    if batch.lane is Lane.INTERACTIVE:
        wake_interactive(session, sorted(set(shard_ids)))
    else:
        wake_dispatcher(session)
    journal.accepted(session, batch_id, batch.lane, len(batch.requests), batch.priority, model=batch.model)
    if row is not None:
        wrong_requests.fail(session, row, batch.requests)
        settle(session, row)
    return batch_id


def _insert(session: Session, batch: NewBatch, batch_id: str, *, is_mixed: bool) -> datetime | None:
    """Write the batch's own row, if its tenant may have it; return when it expires."""
    window = batch.completion_window
    num_prompt_tokens = sum(request.num_prompt_tokens for request in batch.requests)
    max_output_tokens = sum(request.max_output_tokens(batch.params) for request in batch.requests)
    stored_bytes = sum(request.num_bytes for request in batch.requests)
    quotas.check(session, Demand(len(batch.requests), num_prompt_tokens + max_output_tokens, stored_bytes))
    return session.scalar(
        insert(BatchRow)
        .values(
            id=batch_id,
            tenant_id=tenant_of(session),
            status=BatchStatus.PENDING,
            lane=batch.lane,
            endpoint=batch.endpoint,
            params=batch.params.to_json(),
            name=batch.name,
            metadata_=batch.metadata or {},
            priority=batch.priority,
            callback_url=batch.callback_url,
            num_requests=len(batch.requests),
            num_prompt_tokens=num_prompt_tokens,
            max_output_tokens=max_output_tokens,
            stored_bytes=stored_bytes,
            expires_at=batch.deadline if window is None else starts.end_of_window(batch.start_after, window),
            is_mixed=is_mixed,
            forecast_seconds=batch.forecast_seconds,
            max_failed=batch.max_failed,
            max_total_tokens=batch.max_total_tokens,
            cache=batch.cache,
            cache_similarity=batch.cache_similarity if batch.cache is CacheMode.SEMANTIC else None,
            cache_ttl_seconds=batch.cache_ttl_seconds,
            **models.columns_of(batch.model),
            **starts.columns_of(batch.start_after),
        )
        .returning(BatchRow.expires_at)
    )


def lock(session: Session, batch_id: str, *, skip_locked: bool = False) -> BatchRow | None:
    """Lock the batch's row until the transaction ends; take this lock before those of its shards.

    Returns None if there is no such batch or, with `skip_locked`, if another transaction has it locked.
    """
    return session.scalar(_TRY_TO_LOCK if skip_locked else _LOCK, {"id": batch_id})


def cancel(session: Session, batch_id: str) -> bool:
    """Ask a batch to stop, and settle it at once if no shard of it runs.

    A terminal batch stays as it is. Returns False if there is no such batch.
    """
    batch = lock(session, batch_id)
    if batch is None:
        return False
    if batch.status in {BatchStatus.PENDING, BatchStatus.PROCESSING}:
        batch.status = BatchStatus.CANCELLING
        batch.cancelled_at = func.now()
        journal.changed(session, "batch cancelled", batch)
        session.flush()
        settle(session, batch)
        wake_dispatcher(session)
        wake_workers(session, batch_id)
    return True


def stop(session: Session, batch: BatchRow, error: RequestError) -> None:
    """Ask a locked live batch to stop because of an error, with which it then ends as failed."""
    batch.status = BatchStatus.CANCELLING
    batch.error_code, batch.error_message = error.code, error.message
    session.flush()
    journal.changed(session, "batch stops", batch, error=error.code)
    wake_workers(session, batch.id)


def is_stopping(session: Session, batch: BatchRow) -> bool:
    """Return whether a locked batch has ended, is cancelling or has expired."""
    if has_stopped(batch):
        return True
    return batch.expires_at is not None and bool(session.scalar(select(batch.expires_at <= func.now())))


def has_stopped(batch: BatchRow) -> bool:
    """Return whether a batch has ended or is cancelling, by its row alone."""
    return batch.status not in {BatchStatus.PENDING, BatchStatus.PROCESSING}


def settle(session: Session, batch: BatchRow) -> bool:
    """Move a batch that is locked to its terminal state if its work is over; return whether it moved.

    A batch ends only here (and in `fail`), so that it ends once, with one event in the same transaction. The
    event of a batch from a file waits for the output files (worker/store/files/batch_files.py).
    """
    if not tally.is_locked(batch) or batch.status.is_terminal or batch.num_unread:
        return False
    stops = is_stopping(session, batch)
    if stops and (_has_shards(session, batch, ShardState.RUNNING) or not _drop_the_rest(session, batch)):
        return False  # the dispatcher's next sweep goes on
    tally.catch_up(session, batch)
    if batch.num_settled < batch.num_requests:
        return False
    if not stops:
        _finish_shards(session, batch)
    _end(session, batch, _stopped_as(batch) if stops else BatchStatus.COMPLETED)
    if batch.input_file_id is None:
        report_end(session, batch)
    else:
        wake_files(session)
    return True


def _stopped_as(batch: BatchRow) -> BatchStatus:
    if batch.error_code is not None:
        return BatchStatus.FAILED
    if not batch.num_cancelled:  # every request was done before the stop reached its worker
        return BatchStatus.COMPLETED
    return BatchStatus.CANCELLED if batch.status is BatchStatus.CANCELLING else BatchStatus.EXPIRED


def _finish_shards(session: Session, batch: BatchRow) -> None:
    """Finish shards that are open though no request is left: a lost worker may save what was halved since."""
    session.flush()
    is_open = (ShardRow.batch_id == batch.id, ShardRow.state.in_(OPEN))
    nobodys = {"worker": None, "lease_expires_at": None, "ticketed_at": None, "running_tokens": 0}
    session.execute(
        update(ShardRow)
        .where(*is_open)
        .values(state=ShardState.FINISHED, **nobodys)
        .execution_options(synchronize_session=False)
    )


def fail(session: Session, batch: BatchRow, error: RequestError) -> None:
    """End a locked batch as failed if none of its requests ran and none can run."""
    batch.num_requests = batch.num_unread = 0
    batch.error_code, batch.error_message = error.code, error.message
    _end(session, batch, BatchStatus.FAILED)
    report_end(session, batch)


def report_end(
    session: Session,
    batch: BatchRow,
    files: Mapping[str, str | None] | None = None,
    outside: Mapping[str, str | None] | None = None,
) -> None:
    """Write the event of a batch that has ended for its customer; `files` hold its results, if any do.

    `outside` says what was written to the customer's own bucket.
    """
    webhooks.record_end(session, batch, files, outside)
    wake_dispatcher(session)


def _end(session: Session, batch: BatchRow, status: BatchStatus) -> None:
    batch.status = status
    batch.finished_at = func.now()
    session.flush()
    session.refresh(batch)
    batch_counts.add(session, batch)
    journal.ended(session, batch)
    ended = {reading_name(BATCHES_ENDED, (batch.lane, status)): 1}
    usage.add(session, batch.tenant_id, ended, model=batch.model_fingerprint)


def _drop_the_rest(session: Session, batch: BatchRow) -> bool:
    """Drop at most `DROP_AT_ONCE` shards that no worker runs or is claiming; return whether none is left."""
    ready = select(ShardRow.id).where(ShardRow.batch_id == batch.id, ShardRow.state == ShardState.READY)
    shard_ids = session.scalars(ready.order_by(ShardRow.id).limit(DROP_AT_ONCE).with_for_update()).all()
    session.execute(
        update(ShardRow)
        .where(ShardRow.id.in_(shard_ids))
        .values(state=ShardState.DROPPED, ticketed_at=None)
        .execution_options(synchronize_session=False)
    )
    are_all = len(shard_ids) < DROP_AT_ONCE and not _has_shards(session, batch, *OPEN)
    only = None if are_all else shard_ids
    missing.settle(session, batch, Outcome.CANCELLED, stop_reason(batch), shard_ids=only)
    return are_all


def _has_shards(session: Session, batch: BatchRow, *states: ShardState) -> bool:
    its = exists().where(ShardRow.batch_id == batch.id, ShardRow.state.in_(states))
    return bool(session.scalar(select(its)))


def stop_reason(batch: BatchRow) -> RequestError:
    """Return the error of the requests that a stopping batch leaves unfinished."""
    if batch.status is not BatchStatus.CANCELLING:
        return RequestError(
            "batch_expired", "the completion window of the batch ended before this request did"
        )
    if batch.error_code is None:
        return RequestError("batch_cancelled", "the batch was cancelled before this request ended")
    return RequestError(batch.error_code, f"the batch stopped itself: {batch.error_message}")


def settle_stopping(session: Session, *, limit: int) -> int:
    """Settle batches that were cancelled or have expired and have no running shard.

    Returns:
        The number of batches that ended.

    """
    due = session.scalars(
        STOPPING.order_by(BatchRow.id).limit(limit).with_for_update(key_share=True, skip_locked=True)
    ).all()
    return sum(settle(session, batch) for batch in due)
