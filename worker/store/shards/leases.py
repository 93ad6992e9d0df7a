"""Renews the leases of held shards, ends those that have expired, and tells whether a claim was committed."""

from collections.abc import Collection
from datetime import timedelta

from sqlalchemy import func, select, tuple_, update
from sqlalchemy.orm import Session

from worker.contract.states import AttemptCause, ShardState
from worker.store.batches import batches, journal, locks, stop_rules
from worker.store.requests import attempts
from worker.store.rows.shards import ShardRow
from worker.store.shards import poison
from worker.store.shards.shards import Claim, settle_cancelled_requests


def is_claimed(session: Session, held: Claim, *, worker: str) -> bool:
    """Return whether a claim was committed, after its transaction if that is still open.

    If fence, state, worker and expiry match the claim, its commit succeeded.
    """
    session.execute(select(ShardRow.id).where(ShardRow.id == held.shard_id).with_for_update())
    as_claimed = (
        ShardRow.fence == held.fence,
        ShardRow.state == ShardState.RUNNING,
        ShardRow.worker == worker,
        ShardRow.lease_expires_at == held.leased_until,
    )
    return bool(session.scalar(select(ShardRow.id).where(ShardRow.id == held.shard_id, *as_claimed)))


def renew(session: Session, held: Collection[tuple[int, int]], *, lease: timedelta) -> None:
    """Renew the leases of held shards, given as (shard id, fence), without their batches' locks."""
    ids = (
        select(ShardRow.id)
        .where(tuple_(ShardRow.id, ShardRow.fence).in_(held), ShardRow.state == ShardState.RUNNING)
        .order_by(ShardRow.id)
        .with_for_update(skip_locked=True)  # a locked shard is being saved
    )
    session.execute(
        update(ShardRow)
        .where(ShardRow.id.in_(ids))
        .values(lease_expires_at=func.now() + lease)
        .execution_options(synchronize_session=False)
    )


def expired(session: Session, *, limit: int) -> list[tuple[int, str]]:
    """Return (shard id, batch id) of running shards whose lease has expired, the oldest first."""
    rows = session.execute(
        select(ShardRow.id, ShardRow.batch_id)
        .where(ShardRow.state == ShardState.RUNNING, ShardRow.lease_expires_at <= func.now())
        .order_by(ShardRow.lease_expires_at)
        .limit(limit)
    )
    return [(shard_id, batch_id) for shard_id, batch_id in rows]


def return_expired(session: Session, shard_id: int, batch_id: str, *, max_attempts: int) -> bool:
    """Make a shard whose lease has expired ready again; return whether this call did so.

    A shard that is locked waits for the next sweep: a session that keeps its lock must not keep the
    dispatcher from all others. `max_attempts` is that of `poison.judge`.
    """
    batch = locks.lock_or_look(session, batch_id)
    if batch is None:
        return False
    shard = session.scalar(
        select(ShardRow)
        .where(
            ShardRow.id == shard_id,
            ShardRow.state == ShardState.RUNNING,
            ShardRow.lease_expires_at <= func.now(),
        )
        .with_for_update(skip_locked=True)
    )
    if shard is None:
        return False
    journal.of_shards(session, "lease expired", batch, shard_id, worker=shard.worker, attempt=shard.attempts)
    attempts.record(session, shard_id, AttemptCause.WORKER_LOST)
    shard.state = ShardState.READY
    shard.worker = shard.lease_expires_at = shard.ticketed_at = None
    shard.running_tokens = 0
    session.flush()
    settle_cancelled_requests(session, batch, shard_id)
    session.refresh(shard)
    if shard.state is ShardState.READY and not batches.is_stopping(session, batch):
        poison.judge(session, batch, shard, max_attempts=max_attempts)
    session.flush()
    stop_rules.apply(session, batch)
    batches.settle(session, batch)
    return True
