"""Weighted fair share between tenants: whose shard goes first, and which of theirs.

Start-time fair queueing (Goyal, Vin, Cheng 1996) with tokens as the cost, as in the virtual token counter
of Sheng et al. 2024. A shard's place is the later of its tenant's last finish and the virtual time; its
finish is its place plus its tokens over its tenant's weight. Lower places go first. Of one tenant's shards
those of the highest priority do, whatever their places: docs/decisions/0013.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import CTE, ColumnElement, Float, case, cast, delete, func, literal, select, union, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from worker.contract.states import BatchStatus, Lane, ShardState
from worker.store.requests.models import may_run
from worker.store.rows.access import FairShareRow, TenantRow
from worker.store.rows.batches import BatchRow
from worker.store.rows.shards import ShardRow

# Who had nothing waiting may be so many tokens, over its weight, ahead of those who had: a small batch need
# not share before it has used them up. More is not saved.
SAVED_TOKENS = 200_000.0

# Which shard of a tenant comes first, in turns: of one priority, that of the batch that has had the fewest
# run, so that a small batch does not wait for a large one, and that with the earliest deadline, so that what
# came first is not kept waiting by what comes later.
FEWEST_FIRST = (ShardRow.priority.desc(), ShardRow.position, ShardRow.expires_at, ShardRow.id)
EARLIEST_FIRST = (ShardRow.priority.desc(), ShardRow.expires_at, ShardRow.id)

IS_TICKETED = (ShardRow.state == ShardState.READY, ShardRow.ticketed_at.is_not(None))


@dataclass(frozen=True, slots=True)
class Waiting:
    """A shard that may be ticketed. `cost` is in tokens over its tenant's weight."""

    shard_id: int
    tenant_id: str
    virtual_start: float | None
    cost: float


def next_of_each_tenant(
    session: Session, is_due: ColumnElement[bool], *, limit: int, model: str | None = None
) -> Sequence[Waiting]:
    """Return those shards that are due of each tenant's first `limit` ready ones, by either order.

    Those that wait for one model, or those that wait for none in particular.
    """
    is_wanted = ShardRow.model_fingerprint == (model or "")
    tenants = _tenants_with_ready_shards(is_wanted)
    settled = BatchRow.num_completed + BatchRow.num_failed + BatchRow.num_cancelled
    # An output is expected to be as long as the batch's were so far, at first as long as it may be.
    output_tokens = func.coalesce(
        cast(BatchRow.output_tokens, Float) / func.nullif(settled, 0),
        cast(BatchRow.max_output_tokens, Float) / BatchRow.num_requests,
    )
    tokens = cast(BatchRow.num_prompt_tokens, Float) / BatchRow.num_requests + output_tokens
    ready = (
        select(
            ShardRow.id,
            ShardRow.virtual_start,
            (ShardRow.num_requests * tokens).label("tokens"),
            ShardRow.priority,
            ShardRow.position,
            is_due.label("is_due"),
        )
        .join(BatchRow, BatchRow.id == ShardRow.batch_id)
        .where(
            is_wanted,
            ShardRow.tenant_id == tenants.c.tenant_id,
            ShardRow.state == ShardState.READY,
            # Interactive shards take no ticket: worker/tasks/interactive.py.
            ShardRow.lane == Lane.BATCH,
            BatchRow.status.in_([BatchStatus.PENDING, BatchStatus.PROCESSING]),
            BatchRow.paused_at.is_(None),
        )
        .limit(limit)
    )
    firsts = [
        ready.order_by(*order).correlate(tenants).subquery() for order in (FEWEST_FIRST, EARLIEST_FIRST)
    ]
    shard = union(*(select(first) for first in firsts)).lateral("shard")
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
        .where(shard.c.is_due)
        .order_by(tenants.c.tenant_id, shard.c.priority.desc(), shard.c.position, shard.c.id)
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


def first(
    session: Session, *, but: Collection[int] = (), fewest: bool = True, model: str | None = None
) -> int | None:
    """Return the ticketed shard that a worker of this model should run next, leaving out some, or None.

    That is the first of the tenant whose place is the lowest, and it takes that place. `fewest` says by which
    order; whoever asks does so in turns.

    Messages wait in Redis in the order they came, so a ticket says only that some shard is due; which one is
    decided when a worker has room. Of two workers that find the same one, the second claims in vain and asks
    again.
    """
    is_free = (*IS_TICKETED, may_run(model), ShardRow.id.not_in(but), BatchRow.paused_at.is_(None))
    shard = select(ShardRow.id, ShardRow.tenant_id).join(BatchRow, BatchRow.id == ShardRow.batch_id)
    lowest = session.execute(
        shard.where(*is_free).order_by(ShardRow.virtual_start, ShardRow.id).limit(1)
    ).one_or_none()
    if lowest is None:
        return None
    order = FEWEST_FIRST if fewest else EARLIEST_FIRST
    own = shard.where(*is_free, ShardRow.tenant_id == lowest.tenant_id).order_by(*order).limit(1)
    chosen = session.execute(own).one_or_none()
    if chosen is None:  # claimed meanwhile
        return None
    if chosen.id != lowest.id:
        _exchange_places(session, chosen.id, lowest.id)
    return int(chosen.id)


def _exchange_places(session: Session, one: int, other: int) -> None:
    """Give two shards of a tenant each other's places, unless one is locked: then it is being claimed."""
    locked = select(ShardRow.id, ShardRow.virtual_start).where(ShardRow.id.in_([one, other]), *IS_TICKETED)
    found = session.execute(locked.with_for_update(skip_locked=True)).all()
    if len(found) == 2:
        (first_id, first_place), (second_id, second_place) = found
        places_of = {first_id: second_place, second_id: first_place}
        session.execute(
            update(ShardRow)
            .where(ShardRow.id.in_(places_of))
            .values(virtual_start=case(places_of, value=ShardRow.id))
            .execution_options(synchronize_session=False)
        )


def _tenants_with_ready_shards(is_wanted: ColumnElement[bool]) -> CTE:
    # One look at the index for each tenant, however many shards wait: Postgres has no such scan of its own.
    is_ready = is_wanted & (ShardRow.state == ShardState.READY)
    first_name = select(func.min(ShardRow.tenant_id).label("tenant_id")).where(is_ready)
    found = first_name.cte("tenant", recursive=True)
    after = select(func.min(ShardRow.tenant_id)).where(is_ready, ShardRow.tenant_id > found.c.tenant_id)
    return found.union_all(select(after.scalar_subquery()).where(found.c.tenant_id.is_not(None)))
