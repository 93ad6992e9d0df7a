"""Finds shards for a worker's extra slots, and for its interactive ones.

The first are shards whose workers died, shards of tenants that hold less than their part of the slots, and
shards that go before other work of their own tenant.
"""

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from worker.contract.states import Lane, ShardState
from worker.store.requests.models import may_run
from worker.store.rows.batches import BatchRow
from worker.store.rows.shards import ShardRow
from worker.store.shards.fair_share import FEWEST_FIRST, IS_TICKETED

IS_FREE = (~ShardRow.is_suspect, BatchRow.paused_at.is_(None))
WAITS = (*IS_TICKETED, *IS_FREE)


def ready_interactive(session: Session, *, limit: int, model: str | None = None) -> list[int]:
    """Return ready interactive shards that a worker of this model may claim, the oldest first."""
    is_ready = (ShardRow.state == ShardState.READY, ShardRow.lane == Lane.INTERACTIVE)
    query = select(ShardRow.id).where(*is_ready, may_run(model))
    return list(session.scalars(query.order_by(ShardRow.id).limit(limit)))


def begun(session: Session, *, limit: int, model: str | None = None) -> list[int]:
    """Return shards for this model that were claimed before and are ready: their workers died or ended.

    The remaining workers take them over at once.
    """
    query = (
        select(ShardRow.id)
        .join(BatchRow, BatchRow.id == ShardRow.batch_id)
        .where(
            ShardRow.state == ShardState.READY,
            *IS_FREE,
            may_run(model),
            ShardRow.fence > 0,
            ShardRow.lane == Lane.BATCH,
        )
    )
    return list(session.scalars(query.order_by(ShardRow.id).limit(limit)))


def _runs_here(worker: str) -> tuple[ColumnElement[bool], ...]:
    return ShardRow.state == ShardState.RUNNING, ShardRow.lane == Lane.BATCH, ShardRow.worker == worker


def _first_of(session: Session, tenant_id: str | None, waits: tuple[ColumnElement[bool], ...]) -> int | None:
    first = (
        select(ShardRow.id)
        .join(BatchRow, BatchRow.id == ShardRow.batch_id)
        .where(*waits, ShardRow.tenant_id == tenant_id)
        .order_by(*FEWEST_FIRST)
    )
    return session.scalar(first.limit(1))


def next_shard(session: Session, *, worker: str, slots: int, model: str | None = None) -> int | None:
    """Return a ticketed shard of a tenant that holds less than its part of this worker's slots, or None.

    Each tenant that holds a slot or has a ticket gets an equal part, at least one slot. Suspects are left
    out: they run alone, so they need no extra slot.
    """
    waits = (*WAITS, may_run(model))
    joined = select(ShardRow.tenant_id).join(BatchRow, BatchRow.id == ShardRow.batch_id)
    waiting = set(session.scalars(joined.where(*waits).distinct()))
    if not waiting:
        return None
    running = select(ShardRow.tenant_id, func.count()).where(*_runs_here(worker)).group_by(ShardRow.tenant_id)
    held = {tenant_id: int(num_held) for tenant_id, num_held in session.execute(running)}
    part = max(1, slots // len(waiting | held.keys()))
    short = [tenant_id for tenant_id in waiting if held.get(tenant_id, 0) < part]
    if not short:
        return None
    first = joined.where(*waits, ShardRow.tenant_id.in_(short)).order_by(ShardRow.virtual_start, ShardRow.id)
    return _first_of(session, session.scalar(first.limit(1)), waits)


def next_of_own(session: Session, *, worker: str, slots: int, model: str | None = None) -> int | None:
    """Return a ticketed shard that goes before work of its own tenant on this worker, or None.

    Its priority is higher than the lowest of that work; or it is equal, and none of the work with that
    priority is of its batch.
    """
    rows = session.execute(
        select(ShardRow.tenant_id, ShardRow.priority, ShardRow.batch_id).where(*_runs_here(worker))
    )
    running: dict[str, list[tuple[int, str]]] = {}
    for tenant_id, priority, batch_id in rows:
        running.setdefault(tenant_id, []).append((priority, batch_id))
    for tenant_id, held in running.items():
        lowest = min(priority for priority, _ in held)
        # Least-begun batches come first in this order: beyond the limit, no batch waits that has had nothing.
        firsts = (
            select(
                ShardRow.id,
                ShardRow.priority,
                ShardRow.batch_id,
                func.row_number().over(order_by=FEWEST_FIRST).label("place"),
            )
            .join(BatchRow, BatchRow.id == ShardRow.batch_id)
            .where(*WAITS, may_run(model), ShardRow.tenant_id == tenant_id)
            .order_by(*FEWEST_FIRST)
            .limit(2 * slots)
            .subquery()
        )
        has_none = firsts.c.batch_id.not_in([batch_id for priority, batch_id in held if priority == lowest])
        found = session.scalar(
            select(firsts.c.id)
            .where(or_(firsts.c.priority > lowest, and_(firsts.c.priority == lowest, has_none)))
            .order_by(firsts.c.place)
            .limit(1)
        )
        if found is not None:
            return int(found)
    return None
