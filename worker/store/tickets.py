"""Which rows get a ticket next: a bounded window a queue, re-issued when Redis lost it."""

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import and_, func, or_, select, update
from sqlalchemy.orm import Session

from worker.contract.messages import CALLBACKS_QUEUE, DELIVER_EVENT, GPU_QUEUE, RUN_SHARD, Ticket
from worker.contract.states import BatchStatus, EventState, Lane, ShardState
from worker.store.tables import BatchRow, ShardRow, WebhookEventRow


def issue_shards(session: Session, *, window: int, reissue_after: timedelta) -> Sequence[Ticket]:
    """Mark the next ready shards as ticketed, up to `window` outstanding; return their tickets.

    A ticket older than `reissue_after` whose shard is still unclaimed counts as lost.
    """
    # Interactive shards take no ticket: worker/tasks/interactive.py.
    is_ready = and_(ShardRow.state == ShardState.READY, ShardRow.lane == Lane.BATCH)
    is_lost = ShardRow.ticketed_at <= func.now() - reissue_after
    outstanding = session.scalar(
        select(func.count()).where(is_ready, ShardRow.ticketed_at.is_not(None), ~is_lost)
    )
    room = window - (outstanding or 0)
    if room <= 0:
        return ()
    chosen = (
        select(ShardRow.id)
        .join(BatchRow, BatchRow.id == ShardRow.batch_id)
        .where(
            is_ready,
            or_(ShardRow.ticketed_at.is_(None), is_lost),
            BatchRow.status.in_([BatchStatus.PENDING, BatchStatus.PROCESSING]),
        )
        .order_by(ShardRow.priority.desc(), ShardRow.id)
        .limit(room)
        .with_for_update(of=ShardRow, skip_locked=True)
        .cte("chosen")
    )
    rows = session.execute(
        update(ShardRow)
        .where(ShardRow.id == chosen.c.id)
        .values(ticketed_at=func.now(), num_tickets=ShardRow.num_tickets + 1)
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
