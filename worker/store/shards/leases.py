"""Renews the leases of held shards, and tells whether a claim of unknown outcome was committed."""

from collections.abc import Collection
from datetime import timedelta

from sqlalchemy import func, select, tuple_, update
from sqlalchemy.orm import Session

from worker.contract.states import ShardState
from worker.store.rows.shards import ShardRow
from worker.store.shards.shards import Claim


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
