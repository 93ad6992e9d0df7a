"""Retries the failed requests of an ended batch as a new batch that is linked to it (docs/decisions/0010)."""

from uuid import uuid4

from sqlalchemy import Select, case, func, insert, literal, null, select
from sqlalchemy.orm import Session

from worker.contract.states import BatchStatus, Lane, ShardState
from worker.store.batches import batches
from worker.store.database.notify import wake_dispatcher
from worker.store.rows.batches import BatchRow
from worker.store.rows.requests import RequestRow, ResultRow
from worker.store.rows.shards import ShardRow
from worker.store.tenants import quotas
from worker.store.tenants.quotas import Demand
from worker.values.outcomes import Outcome

# Columns that record a batch's own life. A retry copies the others: they are what its customer asked for.
OWN_LIFE = {
    "status", "num_requests", "num_completed", "num_failed", "num_cancelled", "num_prompt_tokens",
    "max_output_tokens", "settled_max_tokens", "input_tokens", "cached_tokens", "output_tokens",
    "created_at", "started_at", "cancelled_at", "expires_at", "finished_at", "paused_at", "error_code",
    "error_message", "retry_of", "stored_bytes", "has_cancelled_requests", "num_cut",
    "forecast_seconds", "completed_output_tokens", "tokens_per_second", "measured_tokens", "measured_at",
    "num_unread", "input_file_id", "num_deduplicated", "num_cache_hits", "prefill_seconds", "decode_seconds",
    "padding_seconds", "results_dropped_at",
}  # fmt: skip


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
        .where(RequestRow.batch_id == batch_id, ResultRow.outcome.in_(outcomes))
    )
    sums = [RequestRow.num_prompt_tokens, RequestRow.max_tokens, func.octet_length(RequestRow.prompt)]
    count, prompt_tokens, max_tokens, stored_bytes = session.execute(
        select(func.count(), *(func.sum(one) for one in sums)).where(RequestRow.id.in_(chosen))
    ).one()
    if not count:
        raise NothingToRetryError(batch_id)
    quotas.check(session, Demand(count, int(prompt_tokens + max_tokens), int(stored_bytes)))
    window = None if batch.expires_at is None else batch.expires_at - batch.created_at
    asked_for = {
        column.key: getattr(batch, column.key)
        for column in BatchRow.__mapper__.column_attrs
        if column.key not in OWN_LIFE
    }
    expires_at = session.scalar(
        insert(BatchRow)
        .values(
            asked_for
            | {
                "id": (new_id := f"batch_{uuid4().hex}"),
                "status": BatchStatus.PENDING,
                "lane": Lane.BATCH,  # nobody waits for a retry
                "retry_of": batch_id,
                "num_requests": count,
                "num_prompt_tokens": prompt_tokens,
                "max_output_tokens": max_tokens,
                "stored_bytes": stored_bytes,
                "expires_at": null() if window is None else func.now() + window,
            }
        )
        .returning(BatchRow.expires_at)
    )
    by_priority = session.execute(
        select(ShardRow.priority, func.count())
        .join(RequestRow, RequestRow.shard_id == ShardRow.id)
        .where(RequestRow.id.in_(chosen))
        .group_by(ShardRow.priority)
        .order_by(ShardRow.priority.desc())
    )
    shards = [
        (priority, min(shard_size, num_requests - start))
        for priority, num_requests in by_priority
        for start in range(0, num_requests, shard_size)
    ]
    session.execute(
        insert(ShardRow),
        [
            {
                "batch_id": new_id,
                "tenant_id": batch.tenant_id,
                "position": position,
                "state": ShardState.READY,
                "priority": priority,
                "expires_at": expires_at,
                "model_fingerprint": batch.model_fingerprint or "",
                "num_requests": num_requests,
            }
            for position, (priority, num_requests) in enumerate(shards)
        ],
    )
    first_positions = {priority: position for position, (priority, _) in reversed(list(enumerate(shards)))}
    _copy_requests(session, chosen, new_id, first_positions, shard_size=shard_size)
    wake_dispatcher(session)
    return new_id


def _copy_requests(
    session: Session, chosen: Select[int], new_id: str, first_positions: dict[int, int], *, shard_size: int
) -> None:
    """Copy requests in their order to the new batch's shards, with positions counted from 0.

    Each request keeps its priority. `first_positions` maps each priority to its first shard's position.
    """
    kept = [
        column
        for column in RequestRow.__table__.columns
        if column.name not in {"id", "batch_id", "shard_id", "position", "cancelled_at"}
    ]
    place = (func.row_number().over(order_by=RequestRow.position) - 1).label("place")
    among = func.row_number().over(partition_by=ShardRow.priority, order_by=RequestRow.position) - 1
    first = case(first_positions, value=ShardRow.priority)
    old = (
        select(place, (first + among // shard_size).label("shard"), *kept)
        .join(ShardRow, ShardRow.id == RequestRow.shard_id)
        .where(RequestRow.id.in_(chosen))
        .subquery()
    )
    is_its_shard = (ShardRow.batch_id == new_id) & (ShardRow.position == old.c.shard)
    session.execute(
        insert(RequestRow).from_select(
            ["batch_id", "shard_id", "position", *(column.name for column in kept)],
            select(literal(new_id), ShardRow.id, old.c.place, *(old.c[column.name] for column in kept)).join(
                ShardRow, is_its_shard
            ),
        )
    )
