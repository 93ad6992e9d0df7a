"""Read a batch's place in line: the work that goes before it, and the workers that serve it."""

from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import DateTime, Double, Integer, Select, Text, and_, bindparam, cast, func, or_, select
from sqlalchemy.orm import Session

from worker.contract.messages import GPU_QUEUE
from worker.contract.states import BatchStatus, Lane, ShardState
from worker.store.database import presence
from worker.store.requests import batch_models
from worker.store.requests.models import may_run
from worker.store.rows.batches import BatchRow
from worker.store.rows.shards import ShardRow
from worker.store.rows.workers import WorkerRow
from worker.store.watching.workers import is_live

# Mean tokens of a batch's outputs; NULL before the first result, as limits say little.
MEAN_OUTPUT = cast(BatchRow.output_tokens, Double) / func.nullif(
    BatchRow.num_completed + BatchRow.num_failed + BatchRow.num_cancelled, 0
)


@dataclass(frozen=True, slots=True)
class Ahead:
    """Amount of work in the live batches that go before a given one."""

    num_batches: int
    num_requests: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """Numbers of live gpu workers that serve a model; `num_loading` have not loaded it yet."""

    num_ready: int
    num_loading: int
    num_others: int  # of other models


@dataclass(frozen=True, slots=True)
class ReadyShard:
    """A shard that waits for a worker."""

    num_requests: int
    output_tokens: float | None  # that each is expected to generate; None: not known yet
    is_begun: bool  # a worker had it before


@dataclass(frozen=True, slots=True)
class HeldRequests:
    """A live gpu worker, and the requests of the shards that it holds."""

    name: str
    info: dict[str, Any]
    num_requests: int
    presence_key: int  # worker/store/database/presence.py


def ahead_of(
    session: Session,
    *,
    priority: int,
    expires_at: datetime | None,
    batch_id: str | None = None,
    model: str | None = None,
) -> Ahead:
    """Count the batches that get tickets before a given one: by priority, then deadline, then age.

    `batch_id=None` means a batch that would be submitted now; `model=None` one that any worker may run.
    """
    query = _ahead_of(model, has_deadline=expires_at is not None, is_new=batch_id is None)
    given = {"its_priority": priority, "its_end": expires_at, "its_id": batch_id}
    return Ahead(*map(int, session.execute(query, given).one()))


# The queries of polls and claims are built once for a model: to build one takes Python longer than to run it.
@cache
def _ahead_of(model: str | None, *, has_deadline: bool, is_new: bool) -> Select[int, int]:
    priority = bindparam("its_priority", type_=Integer)
    its_end = bindparam("its_end", type_=DateTime(timezone=True))
    its_id = bindparam("its_id", type_=Text)
    goes_first = BatchRow.priority > priority
    same = BatchRow.priority == priority
    if has_deadline:
        earlier, level = BatchRow.expires_at < its_end, BatchRow.expires_at == its_end
    else:
        earlier, level = BatchRow.expires_at.is_not(None), BatchRow.expires_at.is_(None)
    if not is_new:
        created_at = select(BatchRow.created_at).where(BatchRow.id == its_id).scalar_subquery()
        level = and_(level, BatchRow.created_at < created_at)
    its = batch_models.Picked(model)
    counted = (
        select(func.count(), func.coalesce(func.sum(its.num_left), 0))
        .select_from(BatchRow)
        .outerjoin(its.part, its.joined)
        .where(
            BatchRow.status.in_([BatchStatus.PENDING, BatchStatus.PROCESSING]),
            BatchRow.paused_at.is_(None),
            or_(goes_first, and_(same, or_(earlier, level))),
        )
    )
    if model is not None:
        counted = counted.where(batch_models.is_of(model, has_work=True))
    return counted if is_new else counted.where(BatchRow.id != its_id)


def capacity(session: Session, *, model: str | None = None) -> Capacity:
    """Count the live gpu workers that serve a model; `model=None`: all of them."""
    ready, loading, everybody = session.execute(_capacity(model)).one()
    return Capacity(ready, loading, everybody - ready - loading)


@cache
def _capacity(model: str | None) -> Select[int, int, int]:
    serves = is_live(GPU_QUEUE, model)
    counts = (
        func.count().filter(serves, WorkerRow.slots > 0),
        func.count().filter(serves, WorkerRow.slots == 0),
    )
    return select(*counts, func.count()).where(is_live(GPU_QUEUE))


def first_ready(session: Session, *, model: str | None, limit: int) -> list[ReadyShard]:
    """Return at most `limit` shards that a worker of this model may claim, in no order in particular."""
    return [ReadyShard(*row) for row in session.execute(_first_ready(model), {"limit": limit})]


@cache
def _first_ready(model: str | None) -> Select[int, float | None, bool]:
    return (
        select(ShardRow.num_requests, cast(MEAN_OUTPUT, Double), ShardRow.fence > 0)
        .join(BatchRow, BatchRow.id == ShardRow.batch_id)
        .where(
            may_run(model),
            ShardRow.state == ShardState.READY,
            ShardRow.lane == Lane.BATCH,
            BatchRow.status.in_([BatchStatus.PENDING, BatchStatus.PROCESSING]),
            BatchRow.paused_at.is_(None),
        )
        .limit(bindparam("limit", type_=Integer))
    )


def expected_output(session: Session, batch_id: str) -> float | None:
    """Return the tokens that a request of a batch is expected to generate; None: not known yet."""
    return session.scalar(select(cast(MEAN_OUTPUT, Double)).where(BatchRow.id == batch_id))


def held_requests(session: Session, *, model: str | None) -> list[HeldRequests]:
    """Return the live gpu workers that are ready to run shards of a model, with what they hold."""
    held = (
        select(ShardRow.worker, func.sum(ShardRow.num_requests).label("num_requests"))
        .where(ShardRow.state == ShardState.RUNNING)
        .group_by(ShardRow.worker)
        .subquery()
    )
    rows = session.execute(
        select(
            WorkerRow.name,
            WorkerRow.info,
            func.coalesce(held.c.num_requests, 0),
            presence.key_of(WorkerRow.name),
        )
        .outerjoin(held, held.c.worker == WorkerRow.name)
        .where(is_live(GPU_QUEUE, model), WorkerRow.slots > 0)
    )
    return [HeldRequests(name, info, int(num_requests), key) for name, info, num_requests, key in rows]


def read_clock(session: Session) -> datetime:
    """Return Postgres's time, the only clock that counts."""
    return session.scalars(select(func.now())).one()
