"""Read the delivery log: events, states of their deliveries, and every attempt. Must not write."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Select, select, true
from sqlalchemy.orm import Session

from worker.contract.states import EventState
from worker.store.database import cursors
from worker.store.rows.views import view_of
from worker.store.rows.webhooks import DeliveryAttemptRow, DeliveryRow, WebhookEndpointRow, WebhookEventRow


@dataclass(frozen=True, slots=True)
class DeliveryView:
    """Current state of an event's delivery to one receiver."""

    event_id: str
    endpoint_id: str | None  # None: the batch's own callback
    url: str
    state: EventState
    attempts: int  # since the event was written or last replayed
    next_attempt_at: datetime | None
    last_status_code: int | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class EventView:
    """An event, and the current state of its deliveries."""

    id: str
    type: str
    batch_id: str | None
    body: str
    created_at: datetime
    deliveries: list[DeliveryView]


@dataclass(frozen=True, slots=True)
class DeliveryAttemptView:
    """One try at a delivery."""

    number: int
    endpoint_id: str | None
    created_at: datetime
    duration_ms: int
    status_code: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Filter of a listing of events; None: no restriction."""

    state: EventState | None = None
    endpoint_id: str | None = None
    batch_id: str | None = None


def page(
    session: Session, tenant: str, wanted: EventFilter, *, after: str | None, limit: int
) -> list[EventView]:
    """Return a tenant's events after `after`, newest first; raises UnknownCursorError."""
    query = _of(tenant)
    if wanted.batch_id is not None:
        query = query.where(WebhookEventRow.batch_id == wanted.batch_id)
    if wanted.state is not None or wanted.endpoint_id is not None:
        delivery = select(DeliveryRow.id).where(DeliveryRow.event_id == WebhookEventRow.id)
        if wanted.state is not None:
            delivery = delivery.where(DeliveryRow.state == wanted.state)
        if wanted.endpoint_id is not None:
            delivery = delivery.where(DeliveryRow.endpoint_id == wanted.endpoint_id)
        query = query.where(delivery.exists())
    order = (WebhookEventRow.created_at, WebhookEventRow.id)
    is_own = WebhookEventRow.tenant_id == tenant
    query = cursors.follow(session, query, order, after=after, limit=limit, is_visible=is_own)
    return _views(session, session.scalars(query).all())


def get(session: Session, tenant: str, event_id: str) -> EventView | None:
    """Return a tenant's event, or None if there is none."""
    row = session.scalar(_of(tenant).where(WebhookEventRow.id == event_id))
    return None if row is None else _views(session, [row])[0]


def attempts(session: Session, event_id: str) -> list[DeliveryAttemptView]:
    """Return every attempt at an event, in order."""
    rows = session.execute(
        select(DeliveryAttemptRow, DeliveryRow.endpoint_id)
        .outerjoin(DeliveryRow, DeliveryRow.id == DeliveryAttemptRow.delivery_id)
        .where(DeliveryAttemptRow.event_id == event_id)
        .order_by(DeliveryAttemptRow.number)
    )
    return [view_of(DeliveryAttemptView, row, endpoint_id=endpoint_id) for row, endpoint_id in rows]


def delivery_of(session: Session, batch_id: str) -> DeliveryView | None:
    """Return the delivery to a batch's own callback; None before the batch ends or without a callback."""
    return deliveries_of(session, [batch_id]).get(batch_id)


def deliveries_of(session: Session, batch_ids: Sequence[str]) -> dict[str, DeliveryView]:
    """Return the deliveries to several batches' own callbacks, by batch id."""
    events = session.scalars(select(WebhookEventRow).where(WebhookEventRow.batch_id.in_(batch_ids))).all()
    return {
        event.batch_id: delivery
        for event in (_views(session, events) if events else [])
        for delivery in event.deliveries
        if event.batch_id is not None and delivery.endpoint_id is None
    }


def _of(tenant: str) -> Select[WebhookEventRow]:
    """Return the one query through which a tenant sees events."""
    return select(WebhookEventRow).where(WebhookEventRow.tenant_id == tenant)


def _views(session: Session, events: Sequence[WebhookEventRow]) -> list[EventView]:
    last = (
        select(DeliveryAttemptRow)
        .where(DeliveryAttemptRow.delivery_id == DeliveryRow.id)
        .order_by(DeliveryAttemptRow.number.desc())
        .limit(1)
        .lateral()
    )
    rows = session.execute(
        select(DeliveryRow, WebhookEndpointRow.url, last.c.status_code, last.c.error)
        .outerjoin(WebhookEndpointRow, WebhookEndpointRow.id == DeliveryRow.endpoint_id)
        .outerjoin(last, true())
        .where(DeliveryRow.event_id.in_([event.id for event in events]))
        .order_by(DeliveryRow.created_at, DeliveryRow.id)
    )
    callback_url = {event.id: event.url for event in events}
    deliveries = defaultdict(list)
    for row, endpoint_url, status_code, error in rows:
        view = view_of(
            DeliveryView,
            row,
            url=endpoint_url or callback_url[row.event_id] or "",
            next_attempt_at=row.next_attempt_at if row.state is EventState.PENDING else None,
            last_status_code=status_code,
            last_error=error,
        )
        deliveries[row.event_id].append(view)
    return [view_of(EventView, event, deliveries=deliveries[event.id]) for event in events]
