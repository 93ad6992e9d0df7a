"""Finds requests that are out of time: no result within `timeout_seconds` of their batch's acceptance."""

from collections.abc import Collection
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Select, func, select, update
from sqlalchemy.orm import Session

from worker.store.rows.batches import BatchRow
from worker.store.rows.requests import RequestRow, ResultRow
from worker.store.rows.shards import ShardRow

TIMEOUT_AT: ColumnElement[datetime] = BatchRow.created_at + RequestRow.timeout_seconds * timedelta(seconds=1)
AGE = func.extract("epoch", func.clock_timestamp() - BatchRow.created_at)
SECONDS_LEFT = RequestRow.timeout_seconds - AGE


def note(session: Session, shard_ids: Collection[int] | Select[int]) -> None:
    """Store in these shards when the first of their requests without a result is out of time."""
    first = (
        select(func.min(TIMEOUT_AT))
        .select_from(RequestRow)
        .join(BatchRow, BatchRow.id == RequestRow.batch_id)
        .outerjoin(ResultRow, ResultRow.request_id == RequestRow.id)
        .where(RequestRow.shard_id == ShardRow.id, ResultRow.request_id.is_(None))
        .scalar_subquery()
    )
    session.execute(
        update(ShardRow)
        .where(ShardRow.id.in_(shard_ids))
        .values(timeout_at=first)
        .execution_options(synchronize_session=False)
    )


def late(session: Session, shard_ids: Collection[int]) -> list[int]:
    """Return the ids of the requests of these shards that are out of time."""
    found = (
        select(RequestRow.id)
        .join(BatchRow, BatchRow.id == RequestRow.batch_id)
        .outerjoin(ResultRow, ResultRow.request_id == RequestRow.id)
        .where(RequestRow.shard_id.in_(shard_ids), ResultRow.request_id.is_(None), func.now() >= TIMEOUT_AT)
    )
    return list(session.scalars(found))
