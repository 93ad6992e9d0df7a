"""Orders shards by weighted fair share between tenants, and by priority within a tenant.

The method is start-time fair queueing (Goyal, Vin, Cheng 1996) with tokens as the cost, as in the virtual
token counter of Sheng et al. 2024. A shard's place (its virtual start) is the later of its tenant's last
finish and the virtual time less `SAVED_TOKENS`. Its finish is its place plus its cost: its tokens divided by
its tenant's weight. The lowest place goes first. Within a tenant the highest priority goes first, whatever
the places: docs/decisions/0013.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    ColumnElement,
    Float,
    Integer,
    Interval,
    Select,
    String,
    any_,
    bindparam,
    case,
    cast,
    delete,
    func,
    literal,
    or_,
    select,
    union,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from worker.contract.states import BatchStatus, Lane, ShardState
from worker.store.requests.models import may_run
from worker.store.rows.access import FairShareRow, TenantRow
from worker.store.rows.batches import BatchRow
from worker.store.rows.shards import ShardRow

# An idle tenant banks at most this weighted credit of tokens, which a small batch may use up before it has to
# share.
SAVED_TOKENS = 200_000.0

# Two orders of a tenant's shards, used in turns. Within one priority, the first prefers the batch with the
# fewest shards run, so that a small batch does not wait for a large one. The second prefers the earliest
# deadline, so that later batches do not delay earlier ones.
FEWEST_FIRST = (ShardRow.priority.desc(), ShardRow.position, ShardRow.expires_at, ShardRow.id)
EARLIEST_FIRST = (ShardRow.priority.desc(), ShardRow.expires_at, ShardRow.id)

IS_TICKETED = (ShardRow.state == ShardState.READY, ShardRow.ticketed_at.is_not(None))


@dataclass(frozen=True, slots=True)
class ChosenShard:
    """A shard whose turn it is."""

    shard_id: int
    is_suspect: bool  # it runs alone: worker/store/shards/poison.py


@dataclass(frozen=True, slots=True)
class WaitingShard:
    """A shard that may be ticketed. `cost` is its tokens divided by its tenant's weight."""

    shard_id: int
    tenant_id: str
    virtual_start: float | None
    cost: float


def next_of_each_tenant(
    session: Session, *, limit: int, reissue_after: timedelta, model: str | None = None
) -> Sequence[WaitingShard]:
    """Return the due shards among each tenant's first `limit` ready shards, in either order.

    A shard is due without a ticket, or if its ticket is older than `reissue_after`. Only shards that wait for
    `model` count; with None, only shards that wait for no model in particular.
    """
    given = {"model": model or "", "limit": limit, "reissue_after": reissue_after}
    return [WaitingShard(*row) for row in session.execute(_next_of_each_tenant(), given)]


@cache
def _next_of_each_tenant() -> Select[tuple[Any, ...]]:
    # Built once: each dispatcher asks every second, and building it takes longer than Postgres's answer.
    is_wanted = ShardRow.model_fingerprint == bindparam("model", type_=String)
    is_lost = ShardRow.ticketed_at <= func.now() - bindparam("reissue_after", type_=Interval)
    tenants = _tenants_with_ready_shards(is_wanted)
    settled = BatchRow.num_completed + BatchRow.num_failed + BatchRow.num_cancelled
    # The expected output length is the batch's mean so far; before the first result it is the maximum.
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
            or_(ShardRow.ticketed_at.is_(None), is_lost).label("is_due"),
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
        .limit(bindparam("limit", type_=Integer))
    )
    firsts = [
        ready.order_by(*order).correlate(tenants).subquery() for order in (FEWEST_FIRST, EARLIEST_FIRST)
    ]
    shard = union(*(select(first) for first in firsts)).lateral("shard")
    return (
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


def places(session: Session, waiting: Sequence[WaitingShard]) -> dict[int, float]:
    """Give shards without a place one, and charge their tenants; return the places by shard id."""
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
    if virtual_time is None:  # there is no work: no tenant is behind or ahead
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
) -> ChosenShard | None:
    """Return the ticketed shard that a worker of this model should run next, except those in `but`, or None.

    The lowest place selects the tenant. That tenant's first shard runs, and it gets the lowest place.
    `fewest` selects the order `FEWEST_FIRST`, otherwise `EARLIEST_FIRST`; callers alternate between them.

    Messages wait in Redis in the order of their arrival, so a ticket says only that some shard is due; this
    function chooses the shard when a worker has room. If two workers find the same shard, the second fails
    to claim it and asks again.
    """
    found = session.execute(_first(model, fewest=fewest), {"but": list(but)}).one_or_none()
    if found is None:
        return None
    if found.id != found.lowest:
        _exchange_places(session, found.id, found.lowest)
    return ChosenShard(found.id, found.is_suspect)


@cache
def _first(model: str | None, *, fewest: bool) -> Select[int, bool, int]:
    # Built once for a worker's model: each claim asks, and building it takes longer than Postgres's answer.
    is_tried = ShardRow.id == any_(bindparam("but", type_=ARRAY(BigInteger)))
    is_free = (*IS_TICKETED, may_run(model), ~is_tried, BatchRow.paused_at.is_(None))
    columns = (ShardRow.id, ShardRow.is_suspect, ShardRow.tenant_id)
    shard = select(*columns).join(BatchRow, BatchRow.id == ShardRow.batch_id).where(*is_free).limit(1)
    lowest = shard.order_by(ShardRow.virtual_start, ShardRow.id).cte("lowest")
    order = FEWEST_FIRST if fewest else EARLIEST_FIRST
    own = shard.where(ShardRow.tenant_id == lowest.c.tenant_id).order_by(*order)
    chosen = own.correlate(lowest).lateral("chosen")
    found = select(chosen.c.id, chosen.c.is_suspect, lowest.c.id.label("lowest"))
    return found.select_from(lowest).join(chosen, literal(value=True))


def _exchange_places(session: Session, one: int, other: int) -> None:
    """Exchange the places of two shards of a tenant, unless one is locked because it is being claimed."""
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
    # One index lookup for each tenant, however many shards wait: Postgres has no built-in skip scan.
    is_ready = is_wanted & (ShardRow.state == ShardState.READY)
    first_name = select(func.min(ShardRow.tenant_id).label("tenant_id")).where(is_ready)
    found = first_name.cte("tenant", recursive=True)
    after = select(func.min(ShardRow.tenant_id)).where(is_ready, ShardRow.tenant_id > found.c.tenant_id)
    return found.union_all(select(after.scalar_subquery()).where(found.c.tenant_id.is_not(None)))
