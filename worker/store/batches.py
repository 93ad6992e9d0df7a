"""Batches: submit, look up, cancel, and settle into the one terminal state."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import func, insert, select, update
from sqlalchemy.orm import Session

from worker.contract.sampling import SamplingParams
from worker.contract.states import LIVE_STATUSES, BatchStatus, Lane, Outcome, ShardState
from worker.store import quotas, requests, webhooks
from worker.store.notify import wake_dispatcher, wake_files
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
    lane: Lane = Lane.BATCH


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


def submit(session: Session, batch: NewBatch, *, shard_size: int) -> str:
    """Write the batch, its shards and its requests; return the batch's id. The caller commits.

    Raises:
        QuotaExceededError: it is more than its tenant may have now.

    """
    batch_id = f"batch_{uuid4().hex}"
    window = batch.completion_window
    num_prompt_tokens = sum(request.num_prompt_tokens for request in batch.requests)
    max_output_tokens = sum(request.max_output_tokens(batch.params) for request in batch.requests)
    stored_bytes = sum(len(request.prompt.encode()) for request in batch.requests)
    quotas.check(session, Demand(len(batch.requests), num_prompt_tokens + max_output_tokens, stored_bytes))
    session.execute(
        insert(BatchRow).values(
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
            expires_at=None if window is None else func.now() + window,
        )
    )
    add_shards(
        session, batch_id, batch.requests, shard_size=shard_size, priority=batch.priority, lane=batch.lane
    )
    wake_dispatcher(session)
    return batch_id


def add_shards(
    session: Session,
    batch_id: str,
    given: Sequence[NewRequest],
    *,
    shard_size: int,
    priority: int,
    lane: Lane = Lane.BATCH,
    first_position: int = 0,
) -> None:
    """Write requests of a batch, and the shards that carry them."""
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
                "num_requests": len(part),
            }
            for position, part in enumerate(slices, first_position // shard_size)
        ],
    ).all()
    shards = zip(shard_ids, slices, strict=True)
    requests.copy_in(session, batch_id, shards, first_position=first_position)


def get(session: Session, batch_id: str) -> BatchView | None:
    """Return the batch as it stands now, or None."""
    return get_many(session, [batch_id]).get(batch_id)


def get_many(session: Session, batch_ids: Sequence[str]) -> dict[str, BatchView]:
    """Return batches as they stand now, by id."""
    running_tokens = (
        select(func.coalesce(func.sum(ShardRow.running_tokens), 0))
        .where(ShardRow.batch_id == BatchRow.id, ShardRow.state == ShardState.RUNNING)
        .scalar_subquery()
    )
    found = session.execute(
        select(BatchRow, running_tokens, func.now()).where(BatchRow.id.in_(batch_ids))
    ).all()
    return {row.id: _view(row, running, read_at) for row, running, read_at in found}


def _view(row: BatchRow, running: int, read_at: datetime) -> BatchView:
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
    )


def count_by_status(session: Session) -> dict[BatchStatus, int]:
    """Return how many batches stand in each status, zeros included."""
    rows = session.execute(
        select(BatchRow.status, func.count()).where(BatchRow.lane == Lane.BATCH).group_by(BatchRow.status)
    )
    return dict.fromkeys(BatchStatus, 0) | {BatchStatus(status): count for status, count in rows}


def lock(session: Session, batch_id: str) -> BatchRow | None:
    """Lock the batch's row, before any of its shards, until the transaction ends."""
    return session.scalar(
        select(BatchRow)
        .where(BatchRow.id == batch_id)
        .with_for_update(key_share=True)
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
        is_cancelled = batch.status is BatchStatus.CANCELLING
        _end(session, batch, BatchStatus.CANCELLED if is_cancelled else BatchStatus.EXPIRED)
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
    code = "batch_cancelled" if batch.status is BatchStatus.CANCELLING else "batch_expired"
    missing = requests.fail_missing(
        session,
        batch_id=batch.id,
        first_sequence=batch.num_settled + 1,
        outcome=Outcome.CANCELLED,
        code=code,
        message="the batch ended before this request was run",
    )
    batch.num_cancelled += missing
    batch.settled_max_tokens = batch.max_output_tokens


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
