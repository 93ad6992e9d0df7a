"""Finds the request that kills its workers.

A shard whose workers died several times becomes a suspect and runs alone. It is bisected each time it loses
another worker, until the bad request is alone in its shard and fails. The other requests complete.
"""

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from worker.contract.states import ShardState
from worker.store.batches import journal
from worker.store.requests import missing, models, requests
from worker.store.rows.batches import BatchRow
from worker.store.rows.requests import RequestRow
from worker.store.rows.shards import ShardRow
from worker.values.outcomes import Outcome
from worker.values.results import RequestError


def is_suspect(session: Session, shard_id: int, *, model: str | None = None) -> bool:
    """Return whether a shard that a worker of this model may run is a suspect and must run alone."""
    wanted = (ShardRow.id == shard_id, models.may_run(model))
    return bool(session.scalar(select(ShardRow.is_suspect).where(*wanted)))


def judge(session: Session, batch: BatchRow, shard: ShardRow, *, max_attempts: int) -> None:
    """Mark as suspect, bisect or fail a locked, ready shard whose worker has just been lost.

    A shard becomes a suspect after it has lost `max_attempts` workers. Innocent shards that ran beside it
    may become suspects too. So a shard is bisected only after it has lost a worker while it ran alone, and a
    request fails only after it has lost `max_attempts` workers with no other request beside it.
    """
    if not shard.is_suspect:
        if shard.attempts >= max_attempts:
            shard.is_suspect = True
            shard.attempts = 0
            journal.of_shards(session, "shard runs alone from now on", batch, shard.id)
        return
    remaining = requests.groups_without_result(session, shard.id)
    if len(remaining) > 1:
        half_id = _bisect(session, shard, remaining)
        journal.of_shards(session, "shard bisected", batch, shard.id, other_half=half_id)
    elif shard.attempts >= max_attempts:
        _convict(session, batch, shard)
        journal.of_shards(session, "request failed for its lost workers", batch, shard.id)


def _bisect(session: Session, shard: ShardRow, remaining: list[list[int]]) -> int:
    """Move the second half of the remaining requests to a new shard, and return its id.

    Identical requests stay together.
    """
    moved = [request_id for group in remaining[len(remaining) // 2 :] for request_id in group]
    position = select(func.max(ShardRow.position) + 1).where(ShardRow.batch_id == shard.batch_id)
    half = ShardRow(
        batch_id=shard.batch_id,
        tenant_id=shard.tenant_id,
        position=session.scalar(position),
        state=ShardState.READY,
        lane=shard.lane,
        priority=shard.priority,
        expires_at=shard.expires_at,
        timeout_at=shard.timeout_at,
        model_fingerprint=shard.model_fingerprint,
        num_requests=len(moved),
        is_suspect=True,
    )
    session.add(half)
    session.flush()
    session.execute(update(RequestRow).where(RequestRow.id.in_(moved)).values(shard_id=half.id))
    shard.num_requests -= len(moved)
    shard.attempts = 0
    return half.id


def _convict(session: Session, batch: BatchRow, shard: ShardRow) -> None:
    message = f"{shard.attempts} workers in a row died or hung while they ran this request alone"
    error = RequestError("worker_lost", message)
    missing.settle(session, batch, Outcome.FAILED, error, shard_ids=[shard.id])
    shard.state = ShardState.FINISHED
