"""Issues tickets for due rows within a bounded window, and again when Redis has lost them."""

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import case, func, or_, select, true, update
from sqlalchemy.orm import Session, aliased

from worker.contract.messages import CALLBACKS_QUEUE, DELIVER_EVENT, RUN_SHARD, Ticket, gpu_queue
from worker.contract.states import EventState, ShardState
from worker.store.rows.shards import ShardRow
from worker.store.rows.webhooks import DeliveryRow, ReceiverRow, WebhookEventRow
from worker.store.shards import fair_share
from worker.store.webhooks import receivers


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
    is_lost = ShardRow.ticketed_at <= func.now() - reissue_after
    is_due = or_(ShardRow.ticketed_at.is_(None), is_lost)
    chosen = fair_share.next_of_each_tenant(session, is_due, limit=window, model=model)
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
            label=f"shard {row.position} of {row.batch_id}, {row.num_requests} requests",
        )
        for row in sorted(rows, key=lambda row: row.id)
    ]


def issue_deliveries(
    session: Session, *, window: int, reissue_after: timedelta, most_at_once: int
) -> Sequence[Ticket]:
    """Mark due deliveries as ticketed, at most `window`; return the tickets.

    A ticket older than `reissue_after` whose delivery is still unclaimed counts as lost. A receiver gets at
    most `most_at_once` tickets and running deliveries together, and no ticket while it is paused. So a
    receiver that is slow or down takes few of the workers' slots, however much waits for it.
    """
    is_lost = DeliveryRow.ticketed_at <= func.now() - reissue_after
    is_free = (DeliveryRow.state == EventState.PENDING, or_(DeliveryRow.ticketed_at.is_(None), is_lost))
    held = aliased(DeliveryRow)
    num_held = (
        select(func.count())
        .where(
            held.receiver == ReceiverRow.key,
            or_(held.state == EventState.SENDING, held.ticketed_at > func.now() - reissue_after),
        )
        .scalar_subquery()
    )
    next_ones = (
        select(DeliveryRow.id, DeliveryRow.next_attempt_at)
        .where(DeliveryRow.receiver == ReceiverRow.key, DeliveryRow.next_attempt_at <= func.now(), *is_free)
        .order_by(DeliveryRow.next_attempt_at)
        .limit(func.greatest(0, receivers.room(most_at_once) - num_held))
        .lateral()
    )
    due = (
        select(next_ones.c.id)
        .select_from(ReceiverRow)
        .join(next_ones, true())
        .where(receivers.is_not_paused())
        .order_by(next_ones.c.next_attempt_at)
        .limit(window)
    )
    chosen = (
        select(DeliveryRow.id)
        .where(DeliveryRow.id.in_(due), *is_free)
        .with_for_update(skip_locked=True)
        .cte("chosen")
    )
    rows = session.execute(
        update(DeliveryRow)
        .where(DeliveryRow.id == chosen.c.id, WebhookEventRow.id == DeliveryRow.event_id)
        .values(ticketed_at=func.now(), num_tickets=DeliveryRow.num_tickets + 1)
        .returning(DeliveryRow.id, DeliveryRow.num_tickets, WebhookEventRow.type, WebhookEventRow.batch_id)
    ).all()
    return [
        Ticket(
            task=DELIVER_EVENT,
            queue=CALLBACKS_QUEUE,
            row_id=row.id,
            issue=row.num_tickets,
            label=f"{row.type} of {row.batch_id}" if row.batch_id else row.type,
        )
        for row in rows
    ]
