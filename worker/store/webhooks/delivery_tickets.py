"""Issues tickets for due deliveries within a bounded window, and again when Redis has lost them."""

from collections.abc import Sequence
from datetime import timedelta

from sqlalchemy import func, or_, select, true, update
from sqlalchemy.orm import Session, aliased

from worker.contract.messages import CALLBACKS_QUEUE, DELIVER_EVENT, Ticket
from worker.contract.states import EventState
from worker.store.rows.webhooks import DeliveryRow, ReceiverRow, WebhookEventRow
from worker.store.webhooks import receivers


def issue(session: Session, *, window: int, reissue_after: timedelta, most_at_once: int) -> Sequence[Ticket]:
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
