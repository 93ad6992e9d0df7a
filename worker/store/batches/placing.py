"""Writes requests of a batch, and the shards that carry them: each of one priority and one model."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session

from worker.contract.states import Lane, ShardState
from worker.store.database.session import tenant_of
from worker.store.requests import batch_models, requests
from worker.store.requests.placement import NewShard, Placement, digest_of, priority_of
from worker.store.requests.requests import NewRequest
from worker.store.rows.shards import ShardRow
from worker.values.sampling import SamplingParams


def add_shards(
    session: Session,
    batch_id: str,
    given: Sequence[NewRequest],
    *,
    batch_params: SamplingParams,
    shard_size: int,
    priority: int,
    expires_at: datetime | None,
    model_fingerprint: str | None,
    lane: Lane = Lane.BATCH,
    first_position: int = 0,
    digests: Sequence[bytes | None] | None = None,
    joined: Sequence[int | None] | None = None,
) -> list[int]:
    """Write requests of a batch and the shards that carry them; return the shard id of each request.

    Identical requests among these share a shard. All requests of a shard have one priority and one model;
    `priority` and `model_fingerprint` are for requests without their own. `digests` holds `digest_of` each
    request. `joined` holds the existing shard that each request joins, or None.
    """
    if digests is None:
        digests = [digest_of(request, batch_params) for request in given]
    its_shards = [0 if there is None else there for there in joined or [None] * len(given)]
    new: dict[str, list[int]] = defaultdict(list)  # by model
    for index, request in enumerate(given):
        if not its_shards[index]:
            new[batch_models.fingerprint_of(request, model_fingerprint)].append(index)
    for fingerprint, indices in new.items():
        placement = Placement(shard_size)
        placed = placement.place_all(
            [given[index] for index in indices],
            [digests[index] for index in indices],
            [priority_of(given[index], priority) for index in indices],
        )
        shard_ids = _add_empty_shards(
            session,
            placement.shards,
            batch_id=batch_id,
            expires_at=expires_at,
            model_fingerprint=fingerprint,
            lane=lane,
            first=_num_shards(session, batch_id, fingerprint) if first_position else 0,
        )
        for index, place in zip(indices, placed, strict=True):
            its_shards[index] = shard_ids[place]
    requests.copy_in(session, batch_id, given, its_shards, digests, first_position=first_position)
    return its_shards


def _num_shards(session: Session, batch_id: str, model_fingerprint: str) -> int:
    its = (ShardRow.batch_id == batch_id, ShardRow.model_fingerprint == model_fingerprint)
    return session.scalar(select(func.count()).where(*its)) or 0


def _add_empty_shards(
    session: Session,
    shards: Sequence[NewShard],
    *,
    batch_id: str,
    expires_at: datetime | None,
    model_fingerprint: str,
    lane: Lane,
    first: int,
) -> Sequence[int]:
    """Insert these shards; return their ids."""
    if not shards:
        return []
    return session.scalars(
        insert(ShardRow).returning(ShardRow.id, sort_by_parameter_order=True),
        [
            {
                "batch_id": batch_id,
                "tenant_id": tenant_of(session),
                "position": position,
                "state": ShardState.READY,
                "lane": lane,
                "priority": shard.priority,
                "expires_at": expires_at,
                "model_fingerprint": model_fingerprint,
                "num_requests": shard.num_requests,
            }
            for position, shard in enumerate(shards, first)
        ],
    ).all()
