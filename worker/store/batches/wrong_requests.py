"""Fails the wrong requests of a new batch before any worker sees them."""

from collections.abc import Sequence

from sqlalchemy import insert
from sqlalchemy.orm import Session

from worker.contract.states import ShardState
from worker.store.requests import missing
from worker.store.requests.requests import NewRequest
from worker.store.rows.batches import BatchRow
from worker.store.rows.shards import ShardRow


def apart(
    session: Session, batch: BatchRow, given: Sequence[NewRequest], joined: Sequence[int | None]
) -> Sequence[int | None]:
    """Return the shards that requests join, and for wrong ones one that no worker claims."""
    num_wrong = sum(request.error is not None for request in given)
    if not num_wrong:
        return joined
    shard_id = _add_finished_shard(session, batch, num_wrong)
    places = zip(given, joined, strict=True)
    return [there if request.error is None else shard_id for request, there in places]


def fail(session: Session, batch: BatchRow, given: Sequence[NewRequest], first_position: int = 0) -> bool:
    """Give the wrong ones of these stored requests their results; return whether there are any."""
    errors = {
        position: request.error
        for position, request in enumerate(given, first_position)
        if request.error is not None
    }
    if errors:
        missing.fail(session, batch, errors)
    return bool(errors)


def _add_finished_shard(session: Session, batch: BatchRow, num_requests: int) -> int:
    added = insert(ShardRow).values(
        batch_id=batch.id,
        tenant_id=batch.tenant_id,
        position=0,
        state=ShardState.FINISHED,
        priority=batch.priority,
        expires_at=batch.expires_at,
        model_fingerprint=batch.model_fingerprint or "",
        num_requests=num_requests,
    )
    return session.scalars(added.returning(ShardRow.id)).one()
