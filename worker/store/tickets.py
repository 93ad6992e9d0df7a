"""Which rows get a ticket next: a bounded window a queue, re-issued when Redis lost it."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import groupby

from sqlalchemy import case, func, or_, select, update
from sqlalchemy.orm import Session

from worker.contract.messages import CALLBACKS_QUEUE, DELIVER_EVENT, GPU_QUEUE, RUN_SHARD, Ticket
from worker.contract.states import EventState, ShardState
from worker.store import fair_share
from worker.store.tables import ShardRow, WebhookEventRow


def issue_shards(session: Session, *, window: int, reissue_after: timedelta) -> Sequence[Ticket]:
    """Mark each tenant's next ready shards as ticketed, up to `window` outstanding; return their tickets.

    A ticket older than `reissue_after` whose shard is still unclaimed counts as lost. The window is each
    tenant's own, so that a backlog leaves no tenant out; which ticketed shard goes first is decided when a
    worker has room (`fair_share.first`).
    """
    # Dispatchers take turns here: two at once would give out the same places.
    session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended("headrace tickets", 0))))
    is_lost = ShardRow.ticketed_at <= func.now() - reissue_after
    counts = session.execute(
        select(ShardRow.tenant_id, func.count())
        .where(ShardRow.state == ShardState.READY, ShardRow.ticketed_at.is_not(None), ~is_lost)
        .group_by(ShardRow.tenant_id)
    )
    outstanding = {tenant_id: int(count) for tenant_id, count in counts}
    due = fair_share.next_of_each_tenant(session, or_(ShardRow.ticketed_at.is_(None), is_lost), limit=window)
    chosen = [
        waiting
        for tenant_id, of_tenant in groupby(due, key=lambda waiting: waiting.tenant_id)
        for waiting in list(of_tenant)[: max(0, window - outstanding.get(tenant_id, 0))]
    ]
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
            queue=GPU_QUEUE,
            row_id=row.id,
            issue=row.num_tickets,
            label=f"shard {row.position} of {row.batch_id}, {row.num_requests} requests",
        )
        for row in sorted(rows, key=lambda row: row.id)
    ]


def issue_events(session: Session, *, window: int, reissue_after: timedelta) -> Sequence[Ticket]:
    """Mark the webhook events that are due as ticketed, as `issue_shards` does with shards."""
    due = (
        select(WebhookEventRow.id)
        .where(
            WebhookEventRow.state == EventState.PENDING,
            WebhookEventRow.next_attempt_at <= func.now(),
            or_(
                WebhookEventRow.ticketed_at.is_(None),
                WebhookEventRow.ticketed_at <= func.now() - reissue_after,
            ),
        )
        .order_by(WebhookEventRow.next_attempt_at)
        .limit(window)
        .with_for_update(skip_locked=True)
        .cte("due")
    )
    rows = session.execute(
        update(WebhookEventRow)
        .where(WebhookEventRow.id == due.c.id)
        .values(ticketed_at=func.now(), num_tickets=WebhookEventRow.num_tickets + 1)
        .returning(
            WebhookEventRow.id, WebhookEventRow.num_tickets, WebhookEventRow.type, WebhookEventRow.batch_id
        )
    ).all()
    return [
        Ticket(
            task=DELIVER_EVENT,
            queue=CALLBACKS_QUEUE,
            row_id=row.id,
            issue=row.num_tickets,
            label=f"{row.type} of {row.batch_id}",
        )
        for row in rows
    ]


def seconds_to_next_event(session: Session) -> float | None:
    """Return how long until the next webhook event is due, or None when none waits."""
    wait = func.extract("epoch", func.min(WebhookEventRow.next_attempt_at) - func.now())
    seconds = session.scalar(select(wait).where(WebhookEventRow.state == EventState.PENDING))
    return None if seconds is None else max(0.0, float(seconds))
