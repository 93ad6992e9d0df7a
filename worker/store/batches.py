"""Batches: submit, look up, cancel, and settle into the one terminal state."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import Select, func, insert, select, true, tuple_, update
from sqlalchemy.orm import Session

from worker.contract.results import RequestError
from worker.contract.sampling import SamplingParams
from worker.contract.states import LIVE_STATUSES, BatchStatus, Lane, Outcome, ShardState
from worker.store import quotas, requests, webhooks
from worker.store.notify import wake_dispatcher, wake_files, wake_interactive, wake_workers
from worker.store.quotas import Demand
from worker.store.requests import NewRequest
from worker.store.session import tenant_of
from worker.store.tables import BatchRow, ShardRow


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch on its way in. `requests` is not empty."""

    params: SamplingParams
    requests: Sequence[NewRequest]
    callback_url: str | None = None
    priority: int = 0
    metadata: dict[str, Any] | None = None
    completion_window: timedelta | None = None
    deadline: datetime | None = None  # or a window, not both
    max_failed: int | None = None
    max_total_tokens: int | None = None
    lane: Lane = Lane.BATCH
    id: str | None = None  # None: a new one


@dataclass(frozen=True, slots=True)
class BatchView:
    """A batch as it stands now, running requests included."""

    id: str
    status: BatchStatus
    callback_url: str | None
    priority: int
    metadata: dict[str, Any]
    input_file_id: str | None
    num_unread: int
    num_requests: int
    num_completed: int
    num_failed: int
    num_cancelled: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    max_output_tokens: int
    settled_max_tokens: int
    running_tokens: int
    created_at: datetime
    started_at: datetime | None
    expires_at: datetime | None
    finished_at: datetime | None
    read_at: datetime
    paused_at: datetime | None
    max_failed: int | None
    max_total_tokens: int | None
    error_code: str | None
    error_message: str | None
    retry_of: str | None
    completed_output_tokens: int
    output_tokens_squared: int
    tokens_per_second: float | None
    num_running_shards: int

    @property
    def num_settled(self) -> int:
        """Requests that have a result."""
        return self.num_completed + self.num_failed + self.num_cancelled

    @property
    def progress(self) -> float:
        """Share of the tokens the batch may need that are done or no longer needed, 0 to 1."""
        if self.status.is_terminal:
            return 1.0
        if not self.max_output_tokens:  # nothing but readings, or nothing read from its file yet
            return self.num_settled / self.num_requests
        # Of the lines that are still in the file we expect what the others may need.
        expected = self.max_output_tokens * self.num_requests / (self.num_requests - self.num_unread)
        return min(1.0, (self.settled_max_tokens + self.running_tokens) / expected)


def new_id() -> str:
    """Return the id of a batch that is yet to be submitted."""
    return f"batch_{uuid4().hex}"


def submit(session: Session, batch: NewBatch, *, shard_size: int) -> str:
    """Write the batch, its shards and its requests; return the batch's id. The caller commits.

    Raises:
        QuotaExceededError: it is more than its tenant may have now.

    """
    batch_id = batch.id or new_id()
    window = batch.completion_window
    num_prompt_tokens = sum(request.num_prompt_tokens for request in batch.requests)
    max_output_tokens = sum(request.max_output_tokens(batch.params) for request in batch.requests)
    stored_bytes = sum(request.num_bytes for request in batch.requests)
    quotas.check(session, Demand(len(batch.requests), num_prompt_tokens + max_output_tokens, stored_bytes))
    expires_at = session.scalar(
        insert(BatchRow)
        .values(
            id=batch_id,
            tenant_id=tenant_of(session),
            status=BatchStatus.PENDING,
            lane=batch.lane,
            params=batch.params.to_json(),
            metadata_=batch.metadata or {},
            priority=batch.priority,
            callback_url=batch.callback_url,
            num_requests=len(batch.requests),
            num_prompt_tokens=num_prompt_tokens,
            max_output_tokens=max_output_tokens,
            stored_bytes=stored_bytes,
            expires_at=batch.deadline if window is None else func.now() + window,
            max_failed=batch.max_failed,
            max_total_tokens=batch.max_total_tokens,
        )
        .returning(BatchRow.expires_at)
    )
    shard_ids = add_shards(
        session,
        batch_id,
        batch.requests,
        shard_size=shard_size,
        priority=batch.priority,
        expires_at=expires_at,
        lane=batch.lane,
    )
    if batch.lane is Lane.INTERACTIVE:
        wake_interactive(session, shard_ids)
    else:
        wake_dispatcher(session)
    return batch_id


def add_shards(
    session: Session,
    batch_id: str,
    given: Sequence[NewRequest],
    *,
    shard_size: int,
    priority: int,
    expires_at: datetime | None,
    lane: Lane = Lane.BATCH,
    first_position: int = 0,
) -> Sequence[int]:
    """Write requests of a batch, and the shards that carry them; return the shards' ids."""
    slices = [given[i : i + shard_size] for i in range(0, len(given), shard_size)]
    shard_ids = session.scalars(
        insert(ShardRow).returning(ShardRow.id, sort_by_parameter_order=True),
        [
            {
                "batch_id": batch_id,
                "tenant_id": tenant_of(session),
                "position": position,
                "state": ShardState.READY,
                "lane": lane,
                "priority": priority,
                "expires_at": expires_at,
                "num_requests": len(part),
            }
            for position, part in enumerate(slices, first_position // shard_size)
        ],
    ).all()
    shards = zip(shard_ids, slices, strict=True)
    requests.copy_in(session, batch_id, shards, first_position=first_position)
    return shard_ids


def get(session: Session, batch_id: str) -> BatchView | None:
    """Return the batch as it stands now, or None."""
    return get_many(session, [batch_id]).get(batch_id)


def get_many(session: Session, batch_ids: Sequence[str]) -> dict[str, BatchView]:
    """Return batches as they stand now, by id."""
    found = session.execute(_views().where(BatchRow.id.in_(batch_ids)))
    return {one[0].id: to_view(*one) for one in found}


def page(
    session: Session, *, after: str | None, limit: int, status: BatchStatus | None = None
) -> list[BatchView]:
    """Return batches that were submitted as such, the newest first, those after batch `after`."""
    query = _views().where(BatchRow.lane == Lane.BATCH)
    query = query.order_by(BatchRow.created_at.desc(), BatchRow.id.desc()).limit(limit)
    if after is not None:
        last = select(BatchRow.created_at, BatchRow.id).where(BatchRow.id == after).scalar_subquery()
        query = query.where(tuple_(BatchRow.created_at, BatchRow.id) < last)
    if status is not None:
        query = query.where(BatchRow.status == status)
    return [to_view(*found) for found in session.execute(query)]


def _views() -> Select[BatchRow, int, int, datetime]:
    running = (
        select(
            func.coalesce(func.sum(ShardRow.running_tokens), 0).label("tokens"), func.count().label("shards")
        )
        .where(ShardRow.batch_id == BatchRow.id, ShardRow.state == ShardState.RUNNING)
        .lateral()
    )
    return select(BatchRow, running.c.tokens, running.c.shards, func.now()).join(running, true())


def to_view(row: BatchRow, running: int, num_running_shards: int, read_at: datetime) -> BatchView:
    """Return a batch's row and what its running shards come to."""
    return BatchView(
        id=row.id,
        status=row.status,
        callback_url=row.callback_url,
        priority=row.priority,
        metadata=row.metadata_,
        input_file_id=row.input_file_id,
        num_unread=row.num_unread,
        num_requests=row.num_requests,
        num_completed=row.num_completed,
        num_failed=row.num_failed,
        num_cancelled=row.num_cancelled,
        input_tokens=row.input_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.output_tokens,
        max_output_tokens=row.max_output_tokens,
        settled_max_tokens=row.settled_max_tokens,
        running_tokens=int(running),
        created_at=row.created_at,
        started_at=row.started_at,
        expires_at=row.expires_at,
        finished_at=row.finished_at,
        read_at=read_at,
        paused_at=row.paused_at,
        max_failed=row.max_failed,
        max_total_tokens=row.max_total_tokens,
        error_code=row.error_code,
        error_message=row.error_message,
        retry_of=row.retry_of,
        completed_output_tokens=row.completed_output_tokens,
        output_tokens_squared=row.output_tokens_squared,
        tokens_per_second=row.tokens_per_second,
        num_running_shards=num_running_shards,
    )


def count_by_status(session: Session) -> dict[BatchStatus, int]:
    """Return how many batches stand in each status, zeros included."""
    rows = session.execute(
        select(BatchRow.status, func.count()).where(BatchRow.lane == Lane.BATCH).group_by(BatchRow.status)
    )
    return dict.fromkeys(BatchStatus, 0) | {BatchStatus(status): count for status, count in rows}


def lock(session: Session, batch_id: str, *, skip_locked: bool = False) -> BatchRow | None:
    """Lock the batch's row, before any of its shards, until the transaction ends.

    None: there is no such batch, or, with `skip_locked`, somebody else has it locked.
    """
    return session.scalar(
        select(BatchRow)
        .where(BatchRow.id == batch_id)
        .with_for_update(key_share=True, skip_locked=skip_locked)
        .execution_options(populate_existing=True)
    )


def cancel(session: Session, batch_id: str) -> bool:
    """Ask a batch to stop, and settle it at once if nothing of it runs. False: no such batch.

    A terminal batch is left as it is.
    """
    batch = lock(session, batch_id)
    if batch is None:
        return False
    if batch.status in {BatchStatus.PENDING, BatchStatus.PROCESSING}:
        batch.status = BatchStatus.CANCELLING
        batch.cancelled_at = func.now()
        session.flush()
        settle(session, batch)
        wake_dispatcher(session)
        wake_workers(session, batch_id)
    return True


def is_stopping(session: Session, batch: BatchRow) -> bool:
    """Whether the work of a locked batch is no longer wanted."""
    if batch.status not in {BatchStatus.PENDING, BatchStatus.PROCESSING}:
        return True
    return batch.expires_at is not None and bool(session.scalar(select(batch.expires_at <= func.now())))


def settle(session: Session, batch: BatchRow) -> bool:
    """Move a locked batch to its terminal state if it has come to its end; say whether it did.

    The one place where a batch ends (but for `fail`), so that it ends once, with one event in the same
    transaction. The event of one that came as a file waits for its files (worker/store/batch_files.py).
    """
    if batch.status.is_terminal or batch.num_unread:
        return False
    if is_stopping(session, batch):
        is_running = select(ShardRow.id).where(
            ShardRow.batch_id == batch.id, ShardRow.state == ShardState.RUNNING
        )
        if session.scalar(select(is_running.exists())):
            return False
        _drop_the_rest(session, batch)
        status = BatchStatus.EXPIRED
        if batch.status is BatchStatus.CANCELLING:
            status = BatchStatus.CANCELLED if batch.error_code is None else BatchStatus.FAILED
        _end(session, batch, status)
    elif batch.num_settled == batch.num_requests:
        _end(session, batch, BatchStatus.COMPLETED)
    else:
        return False
    if batch.input_file_id is None:
        webhooks.record_end(session, batch)
        wake_dispatcher(session)
    else:
        wake_files(session)
    return True


def fail(session: Session, batch: BatchRow) -> None:
    """End a locked batch of which nothing can be run, and nothing was."""
    batch.num_requests = batch.num_unread = 0
    _end(session, batch, BatchStatus.FAILED)
    webhooks.record_end(session, batch)
    wake_dispatcher(session)


def _end(session: Session, batch: BatchRow, status: BatchStatus) -> None:
    batch.status = status
    batch.finished_at = func.now()
    session.flush()
    session.refresh(batch)


def _drop_the_rest(session: Session, batch: BatchRow) -> None:
    session.execute(
        update(ShardRow)
        .where(ShardRow.batch_id == batch.id, ShardRow.state == ShardState.READY)
        .values(state=ShardState.DROPPED, ticketed_at=None)
    )
    give_missing(session, batch, Outcome.CANCELLED, stop_reason(batch))


def stop_reason(batch: BatchRow) -> RequestError:
    """Return what the requests of a stopping batch are told that were not run to their end."""
    if batch.status is not BatchStatus.CANCELLING:
        return RequestError("batch_expired", "the batch expired before this request was done")
    if batch.error_code is None:
        return RequestError("batch_cancelled", "the batch was cancelled before this request was done")
    return RequestError(batch.error_code, f"the batch stopped itself: {batch.error_message}")


def give_missing(
    session: Session,
    batch: BatchRow,
    outcome: Outcome,
    error: RequestError,
    *,
    shard_id: int | None = None,
    request_ids: Sequence[int] | None = None,
) -> None:
    """Give requests of a locked batch that have no result this one: all, a shard's, or those named."""
    missing = requests.fail_missing(
        session,
        batch_id=batch.id,
        first_sequence=batch.num_settled + 1,
        outcome=outcome,
        code=error.code,
        message=error.message,
        shard_id=shard_id,
        request_ids=request_ids,
    )
    if outcome is Outcome.FAILED:
        batch.num_failed += missing.count
    else:
        batch.num_cancelled += missing.count
    batch.settled_max_tokens += missing.max_tokens
    batch.input_tokens += missing.input_tokens
    batch.output_tokens += missing.output_tokens


def settle_stopping(session: Session, *, limit: int) -> int:
    """Settle batches that were cancelled or whose window closed and of which nothing runs.

    Returns:
        How many batches ended.

    """
    due = session.scalars(
        select(BatchRow)
        .where(
            BatchRow.status.in_(LIVE_STATUSES),
            (BatchRow.status == BatchStatus.CANCELLING) | (BatchRow.expires_at <= func.now()),
        )
        .order_by(BatchRow.id)
        .limit(limit)
        .with_for_update(key_share=True, skip_locked=True)
    ).all()
    return sum(settle(session, batch) for batch in due)
