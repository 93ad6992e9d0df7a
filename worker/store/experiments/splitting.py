"""Has another model run some requests of a batch in place of the batch's own model.

Each of them is compared with another request of the batch, chosen by chance.
"""

from collections.abc import Collection

from sqlalchemy import ColumnElement, Select, Subquery, delete, func, insert, literal, select, update
from sqlalchemy.orm import Session, aliased

from worker.contract.models import Model
from worker.contract.states import ShardState
from worker.store.requests import timeouts
from worker.store.rows.batches import BatchRow
from worker.store.rows.experiments import ExperimentLineRow
from worker.store.rows.requests import RequestRow
from worker.store.rows.shards import ShardRow


def has_copies() -> ColumnElement[bool]:
    """Return the SQL condition of requests with identical ones, which share a shard and a result."""
    other = aliased(RequestRow)
    return (
        select(other.id)
        .where(
            other.shard_id == RequestRow.shard_id,
            other.digest == RequestRow.digest,
            other.id != RequestRow.id,
        )
        .exists()
    )


def pair(
    session: Session, experiment_id: str, by_chance: Select[tuple[int, int, str | None]], number: int
) -> int:
    """Store `number` pairs of requests of an experiment: the first ones run under B, the next ones under A.

    `by_chance` selects position and expectation in a random order, with the place in it, from 1. Returns how
    many pairs have a reference answer on both sides.
    """
    places: Subquery = by_chance.subquery()
    under_b, under_a = aliased(places), aliased(places)
    matched = under_a.c.place == under_b.c.place + number
    lines = select(literal(experiment_id), under_a.c.position, under_b.c.position)
    session.execute(
        insert(ExperimentLineRow).from_select(
            ["experiment_id", "position", "shadow_position"],
            lines.join_from(under_b, under_a, matched).where(under_b.c.place <= number),
        )
    )
    both = select(func.count()).join_from(under_b, under_a, matched)
    expected = (under_a.c.expected.is_not(None), under_b.c.expected.is_not(None))
    return session.scalar(both.where(under_b.c.place <= number, *expected)) or 0


def move(session: Session, batch: BatchRow, chosen: Select[int], model: Model, *, shard_size: int) -> None:
    """Move requests of a batch that nobody has claimed yet to shards that wait for another model."""
    last = select(func.max(ShardRow.position)).where(ShardRow.batch_id == batch.id)
    position = 1 + (session.scalar(last) or 0)
    rows = session.execute(
        select(RequestRow.id, RequestRow.shard_id, ShardRow.priority)
        .join(ShardRow, ShardRow.id == RequestRow.shard_id)
        .where(RequestRow.id.in_(chosen))
        .order_by(ShardRow.priority.desc(), RequestRow.position)
    ).all()
    touched = {row.shard_id for row in rows}
    for start, end in _runs([row.priority for row in rows], shard_size):
        moved = rows[start:end]
        shard = ShardRow(
            batch_id=batch.id,
            tenant_id=batch.tenant_id,
            position=position,
            state=ShardState.READY,
            lane=batch.lane,
            priority=moved[0].priority,
            expires_at=batch.expires_at,
            model_fingerprint=model.fingerprint,
            num_requests=len(moved),
        )
        session.add(shard)
        session.flush()
        touched.add(shard.id)
        position += 1
        ids = [row.id for row in moved]
        session.execute(update(RequestRow).where(RequestRow.id.in_(ids)).values(shard_id=shard.id))
    _count_again(session, touched)


def _runs(priorities: list[int], most: int) -> list[tuple[int, int]]:
    """Return where runs of at most `most` equal priorities begin and end."""
    runs: list[tuple[int, int]] = []
    start = 0
    for place in range(1, len(priorities) + 1):
        if place == len(priorities) or place - start == most or priorities[place] != priorities[start]:
            runs.append((start, place))
            start = place
    return runs


def _count_again(session: Session, shard_ids: Collection[int]) -> None:
    """Store how many requests each of these shards has now; delete those without any."""
    is_one = ShardRow.id.in_(shard_ids)
    count = select(func.count()).where(RequestRow.shard_id == ShardRow.id).scalar_subquery()
    session.execute(
        update(ShardRow).where(is_one).values(num_requests=count).execution_options(synchronize_session=False)
    )
    session.execute(
        delete(ShardRow)
        .where(is_one, ShardRow.num_requests == 0)
        .execution_options(synchronize_session=False)
    )
    timeouts.note(session, select(ShardRow.id).where(is_one))
