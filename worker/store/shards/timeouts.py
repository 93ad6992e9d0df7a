"""Fails the requests that are out of time and that no worker runs; a worker fails those that it runs."""

from collections import defaultdict
from collections.abc import Collection, Mapping

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from worker.contract.states import ShardState
from worker.store.batches import batches, locks, stop_rules
from worker.store.requests import missing, timeouts
from worker.store.rows.shards import ShardRow
from worker.store.shards import shards
from worker.values.outcomes import Outcome
from worker.values.results import TIMEOUT

IS_DUE = (ShardRow.state == ShardState.READY, ShardRow.timeout_at <= func.now())
DUE = select(ShardRow.batch_id, ShardRow.id).where(*IS_DUE)


def due(session: Session, *, limit: int) -> Mapping[str, Collection[int]]:
    """Return ready shards with a request that may be out of time, by batch, the earliest first."""
    rows = session.execute(DUE.order_by(ShardRow.timeout_at).limit(limit))
    found: dict[str, list[int]] = defaultdict(list)
    for batch_id, shard_id in rows:
        found[batch_id].append(shard_id)
    return found


def settle(session: Session, batch_id: str, shard_ids: Collection[int]) -> None:
    """Fail the requests of a batch's ready shards that are out of time; the others may run on.

    A shard that another transaction has locked waits for the next sweep.
    """
    batch = locks.lock_or_look(session, batch_id)
    if batch is None:
        return
    is_here = ShardRow.id.in_(shard_ids)
    locked = session.scalars(
        select(ShardRow.id).where(is_here, *IS_DUE).order_by(ShardRow.id).with_for_update(skip_locked=True)
    ).all()
    if late := timeouts.late(session, locked):
        missing.settle(session, batch, Outcome.FAILED, TIMEOUT, request_ids=late)
    timeouts.note(session, locked)
    for shard_id in locked:
        shards.finish_if_done(session, shard_id)
    session.flush()
    stop_rules.apply(session, batch)
    batches.settle(session, batch)
