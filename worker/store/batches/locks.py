"""Reads a batch with its lock if nobody else has it, and without it otherwise.

A worker needs a batch's state for every claim and save, and its lock only to count results and to end it. So
the workers of a batch do not wait for each other. Those of a batch with `max_total_tokens` do: each has to
know exactly what the others have left of it.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, select
from sqlalchemy.orm import Session

from worker.contract.states import BatchStatus
from worker.store.batches import batches
from worker.store.requests import tally
from worker.store.rows.access import TenantRow
from worker.store.rows.batches import BatchRow
from worker.store.rows.shards import ShardRow

_LOOK = select(BatchRow).where(BatchRow.id == bindparam("id")).execution_options(populate_existing=True)


def look(session: Session, batch_id: str) -> BatchRow | None:
    """Return a batch as it stands, without its lock. Its row belongs to no session: no change is written."""
    batch = session.scalar(_LOOK, {"id": batch_id})
    if batch is not None:
        session.expunge(batch)
    return batch


def from_shard(*its: ColumnElement[bool]) -> Select[BatchRow, TenantRow | None]:
    """Return the query of `look_from_shard` for the shard that meets these conditions."""
    return (
        select(BatchRow, TenantRow)
        .join(ShardRow, ShardRow.batch_id == BatchRow.id)
        .outerjoin(TenantRow, TenantRow.id == BatchRow.tenant_id)
        .where(*its)
        .execution_options(populate_existing=True)
    )


def look_from_shard(
    session: Session, query: Select[BatchRow, TenantRow | None], given: Mapping[str, Any]
) -> tuple[BatchRow, TenantRow | None] | tuple[None, None]:
    """Look at a shard's batch and its tenant by a query of `from_shard`, whose parameters are `given`."""
    found = session.execute(query, given).one_or_none()
    if found is None:
        return None, None
    batch, tenant = found
    session.expunge(batch)
    return batch, tenant


def lock_or_look(session: Session, batch_id: str) -> BatchRow | None:
    """Lock a batch unless another transaction has it locked; return it, or None if there is no such batch.

    `tally.is_locked` tells which it is. Take this lock before those of the batch's shards.
    """
    return batches.lock(session, batch_id, skip_locked=True) or look(session, batch_id)


def lock_to_claim(session: Session, batch: BatchRow) -> BatchRow | None:
    """Return a looked at batch to claim a shard of; lock it if it can be, or must be.

    It can be started by this claim if it has not started, and one with a budget is waited for.
    """
    if batch.status is not BatchStatus.PENDING and batch.max_total_tokens is None:
        return batch
    return lock_to_save(session, batch.id)


def lock_to_save(session: Session, batch_id: str) -> BatchRow | None:
    """Return a batch to save results in: `lock_or_look` it, but wait for one with a budget."""
    batch = lock_or_look(session, batch_id)
    if batch is None or tally.is_locked(batch) or batch.max_total_tokens is None:
        return batch
    return batches.lock(session, batch_id)
