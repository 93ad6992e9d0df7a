"""Copies requests of a batch into a new batch, with what the customer asked for."""

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Select, Text, and_, case, cast, func, insert, inspect, literal, select
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session

from worker.contract.states import BatchStatus, Lane, ShardState
from worker.store.requests.requests import MAX_OUTPUT_TOKENS
from worker.store.rows.batches import BatchRow
from worker.store.rows.requests import RequestRow
from worker.store.rows.shards import ShardRow
from worker.store.rows.table import Copier, columns_copied_by


def sums_of(session: Session, chosen: Select[int]) -> dict[str, int]:
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


def copy_batch(session: Session, batch: BatchRow, own: Mapping[str, Any]) -> BatchRow:
    """Insert a batch with what the customer asked for, but for the columns in `own`."""
    asked_for = {column: getattr(batch, column) for column in columns_copied_by(Copier.RETRY, BatchRow)}
    always = {"status": BatchStatus.PENDING, "lane": Lane.BATCH}  # nobody waits for a copy
    return session.scalars(insert(BatchRow).values({**asked_for, **always, **own}).returning(BatchRow)).one()


def _model_of(new: BatchRow) -> ColumnElement[str]:
    """Return the SQL expression of the model that a copied request waits for, by its old shard."""
    own: ColumnElement[str] = literal(new.model_fingerprint or "")
    return case((literal(new.is_mixed), ShardRow.model_fingerprint), else_=own)


def add_shards(
    session: Session, new: BatchRow, chosen: Select[int], *, shard_size: int
) -> dict[tuple[int, str], int]:
    """Insert the shards for the chosen requests; return the position of the first of each kind.

    All requests of a shard have one priority and one model, its kind. Shards of higher priority come first.
    """
    model = _model_of(new).label("model")
    kinds = session.execute(
        select(ShardRow.priority, model, func.count())
        .join(RequestRow, RequestRow.shard_id == ShardRow.id)
        .where(RequestRow.id.in_(chosen))
        .group_by(ShardRow.priority, "model")
        .order_by(ShardRow.priority.desc(), "model")
    )
    shards = [
        (priority, model, min(shard_size, num_requests - start))
        for priority, model, num_requests in kinds
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
                "model_fingerprint": model,
                "num_requests": num_requests,
            }
            for position, (priority, model, num_requests) in enumerate(shards)
        ],
    )
    placed = reversed(list(enumerate(shards)))
    return {(priority, model): position for position, (priority, model, _) in placed}


def copy_requests(
    session: Session,
    chosen: Select[int],
    new: BatchRow,
    first_positions: dict[tuple[int, str], int],
    *,
    shard_size: int,
    without: Collection[str] = (),
) -> None:
    """Copy requests in their order to the new batch, with positions counted from 0.

    They come to its shards in the order of their old shards, so that what was placed together stays together.
    Each request keeps its priority. `first_positions` is what `add_shards` returned. The
    columns `without` get their defaults.
    """
    kept = [name for name in columns_copied_by(Copier.RETRY, RequestRow) if name not in without]
    columns = [inspect(RequestRow).columns[name].name for name in kept]
    place = (func.row_number().over(order_by=RequestRow.position) - 1).label("place")
    in_shards = (ShardRow.id, RequestRow.position)
    kind = (ShardRow.priority, _model_of(new))
    among = func.row_number().over(partition_by=kind, order_by=in_shards) - 1
    first = case(
        *(
            (and_(*(column == value for column, value in zip(kind, values, strict=True))), position)
            for values, position in first_positions.items()
        )
    )
    old = (
        select(
            place, (first + among // shard_size).label("shard"), *(getattr(RequestRow, name) for name in kept)
        )
        .join(ShardRow, ShardRow.id == RequestRow.shard_id)
        .where(RequestRow.id.in_(chosen))
        .subquery()
    )
    is_its_shard = (ShardRow.batch_id == new.id) & (ShardRow.position == old.c.shard)
    session.execute(
        insert(RequestRow).from_select(
            ["batch_id", "shard_id", "position", *columns],
            select(literal(new.id), ShardRow.id, old.c.place, *(old.c[name] for name in kept)).join(
                ShardRow, is_its_shard
            ),
        )
    )
