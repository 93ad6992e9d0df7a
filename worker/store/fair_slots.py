"""Which shards get a slot over a worker's own: begun ones, and those of tenants with less than their part."""

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from worker.contract.states import Lane, ShardState
from worker.store.tables import BatchRow, ShardRow

MAY_RUN = (ShardRow.state == ShardState.READY, ~ShardRow.is_suspect, BatchRow.paused_at.is_(None))


def begun(session: Session, *, limit: int) -> list[int]:
    """Return shards that were begun and are nobody's: their workers have died, or ended.

    Those that are left take them over at once.
    """
    query = (
        select(ShardRow.id)
        .join(BatchRow, BatchRow.id == ShardRow.batch_id)
        .where(*MAY_RUN, ShardRow.fence > 0, ShardRow.lane == Lane.BATCH)
    )
    return list(session.scalars(query.order_by(ShardRow.id).limit(limit)))


def next_shard(session: Session, *, worker: str, slots: int) -> int | None:
    """Return a ticketed shard of a tenant that holds less than its part of this worker's slots, or None.

    A tenant's part is the same for all that hold a slot or have a ticket, and at least one. Suspects are left
    out: they run alone, and for that need no more than they have.
    """
    waits = (*MAY_RUN, ShardRow.ticketed_at.is_not(None))
    joined = select(ShardRow.tenant_id).join(BatchRow, BatchRow.id == ShardRow.batch_id)
    waiting = set(session.scalars(joined.where(*waits).distinct()))
    if not waiting:
        return None
    running = (
        select(ShardRow.tenant_id, func.count())
        .where(ShardRow.state == ShardState.RUNNING, ShardRow.lane == Lane.BATCH, ShardRow.worker == worker)
        .group_by(ShardRow.tenant_id)
    )
    held = {tenant_id: int(num_held) for tenant_id, num_held in session.execute(running)}
    part = max(1, slots // len(waiting | held.keys()))
    short = [tenant_id for tenant_id in waiting if held.get(tenant_id, 0) < part]
    if not short:
        return None
    return session.scalar(
        select(ShardRow.id)
        .join(BatchRow, BatchRow.id == ShardRow.batch_id)
        .where(*waits, ShardRow.tenant_id.in_(short))
        .order_by(ShardRow.virtual_start, ShardRow.id)
        .limit(1)
    )
