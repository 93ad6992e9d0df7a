"""Issues tickets for due deliveries within a bounded window, and again when Redis has lost them."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache

from sqlalchemy import (
    ColumnElement,
    Integer,
    Interval,
    Select,
    bindparam,
    func,
    literal,
    or_,
    select,
    update,
)
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
    given = {"window": window, "reissue_after": reissue_after, "most_at_once": most_at_once}
    due = session.scalars(_next_of_each_receiver(), given).all()
    if not due:
        return ()
    chosen = (
        select(DeliveryRow.id)
        .where(DeliveryRow.id.in_(due), *_is_due(func.now() - reissue_after))
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


def _is_due(lost_before: ColumnElement[datetime]) -> Sequence[ColumnElement[bool]]:
    return (
        DeliveryRow.state == EventState.PENDING,
        DeliveryRow.next_attempt_at <= func.now(),
        or_(DeliveryRow.ticketed_at.is_(None), DeliveryRow.ticketed_at <= lost_before),
    )


@cache
def _next_of_each_receiver() -> Select[tuple[int]]:
    # Built once: each dispatcher asks every second, and building it takes longer than Postgres's answer.
    lost_before = func.now() - bindparam("reissue_after", type_=Interval)
    most_at_once = bindparam("most_at_once", type_=Integer)
    held = aliased(DeliveryRow)
    num_held = (
        select(func.count())
        .where(
            held.receiver == ReceiverRow.key,
            or_(held.state == EventState.SENDING, held.ticketed_at > lost_before),
        )
        .correlate(ReceiverRow)  # SQLAlchemy does it by itself only in a WHERE or a column
        .scalar_subquery()
    )
    next_ones = (
        select(DeliveryRow.id, DeliveryRow.next_attempt_at)
        .where(DeliveryRow.receiver == ReceiverRow.key, *_is_due(lost_before))
        .order_by(DeliveryRow.next_attempt_at)
        .limit(func.greatest(0, receivers.room(most_at_once) - num_held))
        .lateral()
    )
    return (
        select(next_ones.c.id)
        .select_from(ReceiverRow)
        .join(next_ones, literal(value=True))
        .where(receivers.is_not_paused())
        .order_by(next_ones.c.next_attempt_at)
        .limit(bindparam("window", type_=Integer))
    )
