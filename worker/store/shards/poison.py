"""Finds the request that kills its workers.

A shard that several of the dead have held runs alone, and is bisected each time that costs a worker too,
until the bad request stands alone and fails. The others complete.
"""

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from worker.contract.states import ShardState
from worker.store.batches import batches
from worker.store.requests import requests
from worker.store.rows.batches import BatchRow
from worker.store.rows.requests import RequestRow
from worker.store.rows.shards import ShardRow
from worker.values.outcomes import Outcome
from worker.values.results import RequestError


def judge(session: Session, batch: BatchRow, shard: ShardRow, *, max_attempts: int) -> None:
    """Decide what becomes of a locked, ready shard whose worker has just been lost.

    After `max_attempts` workers it is a suspect. Whoever shared their last moments with it is one too, so
    nothing is held against a shard before it has cost a worker while it ran alone; a request, before it has
    cost `max_attempts` of them with no other beside it.
    """
    if not shard.is_suspect:
        if shard.attempts >= max_attempts:
            shard.is_suspect = True
            shard.attempts = 0
        return
    remaining = requests.groups_without_result(session, shard.id)
    if len(remaining) > 1:
        _bisect(session, shard, remaining)
    elif shard.attempts >= max_attempts:
        _convict(session, batch, shard)


def _bisect(session: Session, shard: ShardRow, remaining: list[list[int]]) -> None:
    """Move the second half of what is left to a shard of its own; identical requests stay together."""
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
        model_fingerprint=shard.model_fingerprint,
        num_requests=len(moved),
        is_suspect=True,
    )
    session.add(half)
    session.flush()
    session.execute(update(RequestRow).where(RequestRow.id.in_(moved)).values(shard_id=half.id))
    shard.num_requests -= len(moved)
    shard.attempts = 0


def _convict(session: Session, batch: BatchRow, shard: ShardRow) -> None:
    message = f"{shard.attempts} workers in a row died or hung while they ran this request alone"
    error = RequestError("worker_lost", message)
    batches.give_missing(session, batch, Outcome.FAILED, error, shard_ids=[shard.id])
    shard.state = ShardState.FINISHED
