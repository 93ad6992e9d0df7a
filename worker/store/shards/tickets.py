"""Issues tickets for due shards within a bounded window, and again when Redis has lost them."""

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import case, func, select, update
from sqlalchemy.orm import Session

from worker.contract.messages import RUN_SHARD, Ticket, gpu_queue
from worker.contract.states import Lane, ShardState
from worker.store.rows.shards import ShardRow
from worker.store.shards import fair_share

READY = select(ShardRow.id).where(ShardRow.state == ShardState.READY, ShardRow.lane == Lane.BATCH)


def issue_shards(
    session: Session, *, window: int, reissue_after: timedelta, model: str | None = None
) -> Sequence[Ticket]:
    """Mark each tenant's first `window` ready shards, in each order, as ticketed; return the tickets.

    Only shards that wait for `model` count; with None, only shards that wait for no model in particular. A
    ticket older than `reissue_after` whose shard is still unclaimed counts as lost. Each tenant has a window
    of its own, so that a backlog shuts no tenant out. `fair_share.first` chooses among the ticketed shards
    when a worker has room.
    """
    # Dispatchers take turns here: two at once would assign the same places.
    session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended("headrace tickets", 0))))
    chosen = fair_share.next_of_each_tenant(session, limit=window, reissue_after=reissue_after, model=model)
    if not chosen:
        return ()
    places = fair_share.places(session, [waiting for waiting in chosen if waiting.virtual_start is None])
    ids = select(ShardRow.id).where(
        ShardRow.id.in_([waiting.shard_id for waiting in chosen]), ShardRow.state == ShardState.READY
    )
    locked = ids.with_for_update(skip_locked=True).cte("locked")
    place = (
        case(places, value=ShardRow.id, else_=ShardRow.virtual_start) if places else ShardRow.virtual_start
    )
    rows = session.execute(
        update(ShardRow)
        .where(ShardRow.id == locked.c.id)
        .values(ticketed_at=func.now(), num_tickets=ShardRow.num_tickets + 1, virtual_start=place)
        .returning(
            ShardRow.id, ShardRow.num_tickets, ShardRow.batch_id, ShardRow.position, ShardRow.num_requests
        )
    ).all()
    return [
        Ticket(
            task=RUN_SHARD,
            queue=gpu_queue(model),
            row_id=row.id,
            issue=row.num_tickets,
            label=f"shard {row.id} of {row.batch_id}, {row.num_requests} requests",
        )
        for row in sorted(rows, key=lambda row: row.id)
    ]
