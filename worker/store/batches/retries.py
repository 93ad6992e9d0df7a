"""Retries the failed requests of an ended batch as a new batch that is linked to it (docs/decisions/0010)."""

from typing import Any
from uuid import uuid4

from sqlalchemy import Select, Text, case, cast, func, insert, inspect, literal, null, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session

from worker.contract.states import BatchStatus, FilesStage, Lane, ShardState
from worker.store.batches import batches, journal
from worker.store.database.notify import wake_dispatcher
from worker.store.requests import timeouts
from worker.store.requests.requests import MAX_OUTPUT_TOKENS
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
    sums = _sums(session, chosen)
    if not sums["num_requests"]:
        raise NothingToRetryError(batch_id)
    tokens = sums["num_prompt_tokens"] + sums["max_output_tokens"]
    quotas.check(session, Demand(sums["num_requests"], tokens, sums["stored_bytes"]))
    new = _copy_batch(session, batch, sums)
    _copy_files(session, batch.id, new.id)
    first_positions = _add_shards(session, new, chosen, shard_size=shard_size)
    _copy_requests(session, chosen, new.id, first_positions, shard_size=shard_size)
    timeouts.note(session, select(ShardRow.id).where(ShardRow.batch_id == new.id))
    wake_dispatcher(session)
    journal.accepted(session, new.id, Lane.BATCH, new.num_requests, new.priority, retry_of=batch_id)
    return new.id


def _sums(session: Session, chosen: Select[int]) -> dict[str, int]:
    """Return the sums over the chosen requests, by the columns of a batch that hold them."""
    part = func.jsonb_array_elements(RequestRow.inputs).column_valued("part")
    part_bytes = case(
        (func.jsonb_typeof(part) == "string", func.octet_length(part.op("#>>")(cast([], ARRAY(Text))))),
        else_=4 * func.jsonb_array_length(part),
    )
    inputs_bytes = select(func.sum(part_bytes)).scalar_subquery()
    aggregates = {
        "num_requests": func.count(),
        "num_prompt_tokens": func.sum(RequestRow.num_prompt_tokens),
        "max_output_tokens": func.sum(MAX_OUTPUT_TOKENS),
        "stored_bytes": func.sum(
            func.coalesce(inputs_bytes, func.octet_length(RequestRow.prompt))
            + func.coalesce(func.octet_length(RequestRow.tool_loop), 0)
            + func.coalesce(func.octet_length(RequestRow.expected), 0)
        ),
    }
    found = session.execute(
        select(*aggregates.values())
        .select_from(RequestRow)
        .join(BatchRow, BatchRow.id == RequestRow.batch_id)
        .where(RequestRow.id.in_(chosen))
    ).one()
    return {column: int(value or 0) for column, value in zip(aggregates, found, strict=True)}


def _copy_batch(session: Session, batch: BatchRow, sums: dict[str, int]) -> BatchRow:
    """Insert a batch with what the customer asked for, over so many requests."""
    began_at = max(filter(None, (batch.created_at, batch.start_after)))
    window = None if batch.expires_at is None else batch.expires_at - began_at
    asked_for = {column: getattr(batch, column) for column in columns_copied_by(Copier.RETRY, BatchRow)}
    own = {
        "id": f"batch_{uuid4().hex}",
        "status": BatchStatus.PENDING,
        "lane": Lane.BATCH,  # nobody waits for a retry
        "retry_of": batch.id,
        "expires_at": null() if window is None else func.now() + window,
    }
    return session.scalars(insert(BatchRow).values(asked_for | own | sums).returning(BatchRow)).one()


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


def _add_shards(session: Session, new: BatchRow, chosen: Select[int], *, shard_size: int) -> dict[int, int]:
    """Insert the shards for the chosen requests; return the position of the first of each priority.

    All requests of a shard have one priority, and shards of higher priority come first.
    """
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
                "batch_id": new.id,
                "tenant_id": new.tenant_id,
                "position": position,
                "state": ShardState.READY,
                "priority": priority,
                "expires_at": new.expires_at,
                "model_fingerprint": new.model_fingerprint or "",
                "num_requests": num_requests,
            }
            for position, (priority, num_requests) in enumerate(shards)
        ],
    )
    return {priority: position for position, (priority, _) in reversed(list(enumerate(shards)))}


def _copy_requests(
    session: Session, chosen: Select[int], new_id: str, first_positions: dict[int, int], *, shard_size: int
) -> None:
    """Copy requests in their order to the new batch's shards, with positions counted from 0.

    Each request keeps its priority. `first_positions` maps each priority to its first shard's position.
    """
    kept = columns_copied_by(Copier.RETRY, RequestRow)
    columns = [inspect(RequestRow).columns[name].name for name in kept]
    place = (func.row_number().over(order_by=RequestRow.position) - 1).label("place")
    among = func.row_number().over(partition_by=ShardRow.priority, order_by=RequestRow.position) - 1
    first = case(first_positions, value=ShardRow.priority)
    old = (
        select(
            place, (first + among // shard_size).label("shard"), *(getattr(RequestRow, name) for name in kept)
        )
        .join(ShardRow, ShardRow.id == RequestRow.shard_id)
        .where(RequestRow.id.in_(chosen))
        .subquery()
    )
    is_its_shard = (ShardRow.batch_id == new_id) & (ShardRow.position == old.c.shard)
    session.execute(
        insert(RequestRow).from_select(
            ["batch_id", "shard_id", "position", *columns],
            select(literal(new_id), ShardRow.id, old.c.place, *(old.c[name] for name in kept)).join(
                ShardRow, is_its_shard
            ),
        )
    )
