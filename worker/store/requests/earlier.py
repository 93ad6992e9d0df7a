"""Joins each request of a file to the shard of an identical one from an earlier chunk, for its Result."""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from worker.contract.states import ShardState
from worker.store.requests.placement import MAX_REMEMBERED, MAX_ROWS
from worker.store.rows.requests import RequestRow, ResultRow
from worker.store.rows.shards import ShardRow
from worker.values.outcomes import Outcome


@dataclass(slots=True)
class Earlier:
    """The shard of each of a batch's latest different requests, at most `MAX_REMEMBERED`.

    A request that was forgotten runs again.
    """

    _shard_ids: OrderedDict[bytes, int] = field(default_factory=OrderedDict)  # by digest and model

    def remember(self, digest: bytes | None, shard_id: int, model: str) -> None:
        """Store the shard of a request for another model; `model` is empty for one of the batch's own."""
        if digest is not None:
            key = digest + model.encode()
            self._shard_ids[key] = shard_id
            self._shard_ids.move_to_end(key)
            if len(self._shard_ids) > MAX_REMEMBERED:
                self._shard_ids.popitem(last=False)

    def join(
        self,
        session: Session,
        digests: Sequence[bytes | None],
        priorities: Sequence[int],
        models: Sequence[str],
    ) -> list[int | None]:
        """Return the shard that each new request joins, or None, and count the requests in those shards.

        The caller holds the batch's lock. A finished shard takes only requests whose Result it has. A ready
        shard takes no request of a higher priority than its own.
        """
        wanted = [
            None if digest is None else self._shard_ids.get(digest + model.encode())
            for digest, model in zip(digests, models, strict=True)
        ]
        room = _room(session, {shard_id for shard_id in wanted if shard_id is not None})
        ended = {shard_id for shard_id, shard in room.items() if shard.state is ShardState.FINISHED}
        waits = {shard_id for shard_id, shard in room.items() if shard.state is ShardState.READY}
        answered = _answered(session, ended)
        joined: list[int | None] = []
        added: Counter[int] = Counter()
        for digest, priority, shard_id in zip(digests, priorities, wanted, strict=True):
            is_open = shard_id in room and added[shard_id] < room[shard_id].num_free
            is_open &= not (shard_id in waits and room[shard_id].priority < priority)
            if shard_id is None or not is_open or (shard_id in ended and (shard_id, digest) not in answered):
                joined.append(None)
            else:
                joined.append(shard_id)
                added[shard_id] += 1
        for shard_id, count in sorted(added.items()):
            session.execute(
                update(ShardRow)
                .where(ShardRow.id == shard_id)
                .values(num_requests=ShardRow.num_requests + count)
                .execution_options(synchronize_session=False)
            )
        return joined


@dataclass(frozen=True, slots=True)
class _Room:
    state: ShardState
    priority: int
    num_free: int  # requests that the shard can still take


def _room(session: Session, shard_ids: set[int]) -> dict[int, _Room]:
    """Lock those of the shards that can take more requests; return their room by shard id."""
    if not shard_ids:
        return {}
    states = [ShardState.READY, ShardState.RUNNING, ShardState.FINISHED]
    rows = session.execute(
        select(ShardRow.id, ShardRow.state, ShardRow.priority, ShardRow.num_requests)
        .where(ShardRow.id.in_(shard_ids), ShardRow.state.in_(states), ~ShardRow.is_suspect)
        .order_by(ShardRow.id)
        .with_for_update()
    )
    return {row.id: _Room(row.state, row.priority, max(0, MAX_ROWS - row.num_requests)) for row in rows}


def _answered(session: Session, shard_ids: set[int]) -> set[tuple[int, bytes | None]]:
    """Return (shard id, digest) of the completed requests of these shards."""
    if not shard_ids:
        return set()
    rows = session.execute(
        select(RequestRow.shard_id, RequestRow.digest)
        .join(ResultRow, ResultRow.request_id == RequestRow.id)
        .where(
            RequestRow.shard_id.in_(shard_ids),
            RequestRow.digest.is_not(None),
            ResultRow.outcome == Outcome.COMPLETED,
        )
    )
    return {(shard_id, digest) for shard_id, digest in rows}
