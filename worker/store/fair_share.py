"""Weighted fair share between tenants: whose shard goes first.

Start-time fair queueing (Goyal, Vin, Cheng 1996) with tokens as the cost, as in the virtual token counter
of Sheng et al. 2024. A shard's place is the later of its tenant's last finish and the virtual time; its
finish is its place plus its tokens over its tenant's weight. Lower places go first.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import CTE, ColumnElement, Float, cast, delete, func, literal, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from worker.contract.states import BatchStatus, Lane, ShardState
from worker.store.access_tables import FairShareRow, TenantRow
from worker.store.tables import BatchRow, ShardRow

# Who had nothing waiting may be so many tokens, over its weight, ahead of those who had: a small batch need
# not share before it has used them up. More is not saved.
SAVED_TOKENS = 200_000.0

# Which shard of a tenant comes first: of one priority, that with the earliest deadline.
ORDER = (ShardRow.priority.desc(), ShardRow.expires_at, ShardRow.id)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A shard that may be ticketed. `cost` is in tokens over its tenant's weight."""

    shard_id: int
    tenant_id: str
    virtual_start: float | None
    cost: float


def next_of_each_tenant(session: Session, is_due: ColumnElement[bool], *, limit: int) -> Sequence[Waiting]:
    """Return ready shards that are due: of each tenant the first `limit`, together and in order."""
    tenants = _tenants_with_ready_shards()
    settled = BatchRow.num_completed + BatchRow.num_failed + BatchRow.num_cancelled
    # An output is expected to be as long as the batch's were so far, at first as long as it may be.
    output_tokens = func.coalesce(
        cast(BatchRow.output_tokens, Float) / func.nullif(settled, 0),
        cast(BatchRow.max_output_tokens, Float) / BatchRow.num_requests,
    )
    tokens = cast(BatchRow.num_prompt_tokens, Float) / BatchRow.num_requests + output_tokens
    shard = (
        select(
            ShardRow.id,
            ShardRow.virtual_start,
            (ShardRow.num_requests * tokens).label("tokens"),
            ShardRow.priority,
            ShardRow.expires_at,
        )
        .join(BatchRow, BatchRow.id == ShardRow.batch_id)
        .where(
            ShardRow.tenant_id == tenants.c.tenant_id,
            ShardRow.state == ShardState.READY,
            # Interactive shards take no ticket: worker/tasks/interactive.py.
            ShardRow.lane == Lane.BATCH,
            is_due,
            BatchRow.status.in_([BatchStatus.PENDING, BatchStatus.PROCESSING]),
            BatchRow.paused_at.is_(None),
        )
        .order_by(*ORDER)
        .limit(limit)
        .lateral("shard")
    )
    rows = session.execute(
        select(
            shard.c.id,
            tenants.c.tenant_id,
            shard.c.virtual_start,
            shard.c.tokens / func.coalesce(TenantRow.weight, 1),
        )
        .select_from(tenants)
        .join(shard, literal(value=True))
        .outerjoin(TenantRow, TenantRow.id == tenants.c.tenant_id)
        .order_by(tenants.c.tenant_id, shard.c.priority.desc(), shard.c.expires_at, shard.c.id)
    )
    return [Waiting(*row) for row in rows]


def places(session: Session, waiting: Sequence[Waiting]) -> dict[int, float]:
    """Give shards that have none their places, and charge their tenants; return places by shard id."""
    if not waiting:
        return {}
    finishes = {row.tenant_id: row.virtual_finish for row in session.scalars(select(FairShareRow))}
    running = select(func.max(ShardRow.virtual_start)).where(ShardRow.state == ShardState.RUNNING)
    ticketed = select(func.min(ShardRow.virtual_start)).where(
        ShardRow.state == ShardState.READY, ShardRow.ticketed_at.is_not(None)
    )
    virtual_time = session.scalar(running)
    if virtual_time is None:
        virtual_time = session.scalar(ticketed)
    if virtual_time is None:  # there is no work: nobody is behind, and nobody ahead
        session.execute(delete(FairShareRow))
        finishes.clear()
        virtual_time = 0.0
    given: dict[int, float] = {}
    for shard in waiting:
        saved = virtual_time - SAVED_TOKENS
        given[shard.shard_id] = max(finishes.get(shard.tenant_id, saved), saved)
        finishes[shard.tenant_id] = given[shard.shard_id] + shard.cost
    changed = {shard.tenant_id for shard in waiting}
    statement = insert(FairShareRow)
    session.execute(
        statement.on_conflict_do_update(
            index_elements=[FairShareRow.tenant_id],
            set_={"virtual_finish": statement.excluded.virtual_finish},
        ),
        [{"tenant_id": tenant_id, "virtual_finish": finishes[tenant_id]} for tenant_id in sorted(changed)],
    )
    return given


def first(session: Session, *, but: Collection[int] = ()) -> int | None:
    """Return the ticketed shard that should run next, leaving out some; None: there is none.

    Messages wait in Redis in the order they came, so a ticket says only that some shard is due; which one is
    decided when a worker has room. Nothing is locked: of two workers that find the same one, the second
    claims in vain and asks again.
    """
    return session.scalar(
        select(ShardRow.id)
        .join(BatchRow, BatchRow.id == ShardRow.batch_id)
        .where(
            ShardRow.state == ShardState.READY,
            ShardRow.ticketed_at.is_not(None),
            ShardRow.id.not_in(but),
            BatchRow.paused_at.is_(None),
        )
        .order_by(ShardRow.virtual_start, ShardRow.id)
        .limit(1)
    )


def _tenants_with_ready_shards() -> CTE:
    # One look at the index for each tenant, however many shards wait: Postgres has no such scan of its own.
    is_ready = ShardRow.state == ShardState.READY
    first_name = select(func.min(ShardRow.tenant_id).label("tenant_id")).where(is_ready)
    found = first_name.cte("tenant", recursive=True)
    after = select(func.min(ShardRow.tenant_id)).where(is_ready, ShardRow.tenant_id > found.c.tenant_id)
    return found.union_all(select(after.scalar_subquery()).where(found.c.tenant_id.is_not(None)))
