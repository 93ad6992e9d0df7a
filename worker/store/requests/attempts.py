"""Records the attempts at requests that brought no result, and their causes.

A request that completes at its first try has no attempts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, func, insert, select
from sqlalchemy.orm import Session

from worker.contract.states import AttemptCause
from worker.store.rows.requests import RequestAttemptRow, RequestRow, ResultRow
from worker.store.rows.shards import ShardRow
from worker.store.rows.views import view_of


@dataclass(frozen=True, slots=True)
class RequestAttemptView:
    """One attempt that brought no result, as a client reads it."""

    number: int
    worker: str | None
    cause: AttemptCause
    ended_at: datetime


def record(session: Session, shard_id: int, cause: AttemptCause) -> None:
    """Record an attempt, with its cause, at every request of a locked shard that has no result yet."""
    number = (
        select(func.coalesce(func.max(RequestAttemptRow.number), 0) + 1)
        .where(RequestAttemptRow.request_id == RequestRow.id)
        .scalar_subquery()
    )
    tried = (
        select(RequestRow.id, number, ShardRow.worker, bindparam("cause", cause.value))
        .join(ShardRow, ShardRow.id == RequestRow.shard_id)
        .outerjoin(ResultRow, ResultRow.request_id == RequestRow.id)
        .where(RequestRow.shard_id == shard_id, ResultRow.request_id.is_(None))
    )
    columns = ["request_id", "number", "worker", "cause"]
    session.execute(insert(RequestAttemptRow).from_select(columns, tried))


def of_requests(session: Session, request_ids: Sequence[int]) -> Mapping[int, Sequence[RequestAttemptView]]:
    """Return the attempts of requests, by request id and in order; requests without any are left out."""
    rows = session.scalars(
        select(RequestAttemptRow)
        .where(RequestAttemptRow.request_id.in_(request_ids))
        .order_by(RequestAttemptRow.request_id, RequestAttemptRow.number)
    )
    found: dict[int, list[RequestAttemptView]] = {}
    for row in rows:
        found.setdefault(row.request_id, []).append(view_of(RequestAttemptView, row))
    return found
