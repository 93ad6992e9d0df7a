"""Store deliveries of webhook events to their receivers. Must not know HTTP or signatures."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

from sqlalchemy import func, insert, select, update
from sqlalchemy.orm import Session

from worker.contract.access import NOBODY
from worker.contract.distributions import observed, reading_name
from worker.contract.states import EventState
from worker.contract.usage import WEBHOOK_ATTEMPTS, WEBHOOK_SECONDS
from worker.store.counts import usage
from worker.store.database import journal
from worker.store.database.notify import wake_dispatcher
from worker.store.rows.webhooks import DeliveryAttemptRow, DeliveryRow, WebhookEndpointRow, WebhookEventRow
from worker.store.webhooks import endpoints, receivers

# Labels of attempts in metrics, by the state that they leave the delivery in.
LABELS = {EventState.DELIVERED: "delivered", EventState.PENDING: "retried", EventState.FAILED: "failed"}
SETTLED_OR_WAITING = (EventState.PENDING, EventState.DELIVERED, EventState.FAILED)

EXPIRED = select(DeliveryRow.id).where(
    DeliveryRow.state == EventState.SENDING, DeliveryRow.lease_expires_at <= func.now()
)
PENDING = select(DeliveryRow.id).where(DeliveryRow.state == EventState.PENDING)


@dataclass(frozen=True, slots=True)
class DeliveryClaim:
    """Claim on a delivery, for one attempt."""

    id: str
    event_id: str
    batch_id: str | None  # None: the event is a ping
    endpoint_id: str | None  # None: the batch's own callback
    receiver: str
    tenant_id: str  # of the event
    url: str
    body: str
    sealed_secrets: tuple[str, ...]  # of the endpoint, the newest first; a callback has none
    fence: int
    attempt: int  # of this delivery, from 1
    number: int  # among all attempts at the event, from 1


@dataclass(frozen=True, slots=True)
class Attempt:
    """Outcome of one attempt: a status code, an error, or both."""

    duration_ms: int
    status_code: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """Consequences of an attempt.

    Args:
        state: The delivery's new state.
        retry_in: How long a pending delivery waits for its next attempt.
        is_healthy: Whether the receiver works, whatever it said of this event; None: it was not asked.
        disable: Reason to disable the endpoint; None: it stays enabled.

    """

    state: EventState
    retry_in: timedelta | None = None
    is_healthy: bool | None = True
    disable: str | None = None


def add(session: Session, event_id: str, receiver_of: dict[str | None, str]) -> None:
    """Insert an event's deliveries, given receivers by endpoint id; None is the batch's own callback."""
    if not receiver_of:
        return
    session.execute(
        insert(DeliveryRow),
        [
            {
                "id": f"dlv_{uuid4().hex}",
                "event_id": event_id,
                "endpoint_id": endpoint_id,
                "receiver": receiver,
                "state": EventState.PENDING,
            }
            for endpoint_id, receiver in receiver_of.items()
        ],
    )
    receivers.use(session, receiver_of.values())
    wake_dispatcher(session)


def claim(session: Session, delivery_id: str, *, lease: timedelta, most_at_once: int) -> DeliveryClaim | None:
    """Claim a due delivery; None: it is not due, its endpoint is disabled, or its receiver admits no more."""
    is_due = (
        DeliveryRow.id == delivery_id,
        DeliveryRow.state == EventState.PENDING,
        DeliveryRow.next_attempt_at <= func.now(),
    )
    found = session.execute(
        select(DeliveryRow.receiver, DeliveryRow.endpoint_id).where(*is_due)
    ).one_or_none()
    if found is None:
        return None
    change = update(DeliveryRow).where(*is_due)
    if not receivers.admit(session, found.receiver, most=most_at_once):
        session.execute(change.values(ticketed_at=None))
        return None
    endpoint = session.get(WebhookEndpointRow, found.endpoint_id) if found.endpoint_id else None
    if endpoint is not None and not endpoint.is_enabled:
        values = {"state": EventState.FAILED, "ticketed_at": None}
        session.execute(change.values(**values))
        return None
    row = session.execute(
        change.values(
            state=EventState.SENDING,
            fence=DeliveryRow.fence + 1,
            attempts=DeliveryRow.attempts + 1,
            lease_expires_at=func.now() + lease,
            ticketed_at=None,
        ).returning(DeliveryRow.event_id, DeliveryRow.fence, DeliveryRow.attempts)
    ).one_or_none()
    if row is None:
        return None
    event = session.execute(
        update(WebhookEventRow)
        .where(WebhookEventRow.id == row.event_id)
        .values(attempts=WebhookEventRow.attempts + 1)
        .returning(
            WebhookEventRow.tenant_id,
            WebhookEventRow.batch_id,
            WebhookEventRow.url,
            WebhookEventRow.body,
            WebhookEventRow.attempts,
        )
    ).one()
    return DeliveryClaim(
        id=delivery_id,
        event_id=row.event_id,
        batch_id=event.batch_id,
        endpoint_id=found.endpoint_id,
        receiver=found.receiver,
        tenant_id=event.tenant_id or NOBODY,
        url=event.url if endpoint is None else endpoint.url,
        body=event.body,
        sealed_secrets=() if endpoint is None else _sealed_secrets(session, endpoint),
        fence=row.fence,
        attempt=row.attempts,
        number=event.attempts,
    )


def _sealed_secrets(session: Session, endpoint: WebhookEndpointRow) -> tuple[str, ...]:
    is_old_valid = endpoint.old_secret_expires_at is not None and session.scalar(
        select(endpoint.old_secret_expires_at > func.now())
    )
    old = endpoint.old_sealed_secret if is_old_valid else None
    return tuple(secret for secret in (endpoint.sealed_secret, old) if secret is not None)


def renew(session: Session, held: DeliveryClaim, *, lease: timedelta) -> None:
    """Extend the lease of a delivery that is being sent."""
    session.execute(
        update(DeliveryRow)
        .where(
            DeliveryRow.id == held.id,
            DeliveryRow.fence == held.fence,
            DeliveryRow.state == EventState.SENDING,
        )
        .values(lease_expires_at=func.now() + lease)
    )


def record_attempt(session: Session, held: DeliveryClaim, attempt: Attempt, outcome: DeliveryOutcome) -> None:
    """Log an attempt, update the circuit breaker, and move the delivery to the outcome's state."""
    journal.record(
        session,
        "delivery attempted",
        batch=held.batch_id,
        delivery=held.id,
        event=held.event_id,
        endpoint=held.endpoint_id,
        attempt=held.attempt,
        status=attempt.status_code,
        error=attempt.error,
        ms=attempt.duration_ms,
        state=outcome.state,
        retry_in_seconds=None if outcome.retry_in is None else round(outcome.retry_in.total_seconds(), 1),
    )
    # Lock the receiver first, as `claim` does.
    if outcome.is_healthy is not None:
        receivers.record(session, held.receiver, is_healthy=outcome.is_healthy)
    session.execute(
        insert(DeliveryAttemptRow).values(
            event_id=held.event_id,
            number=held.number,
            delivery_id=held.id,
            duration_ms=attempt.duration_ms,
            status_code=attempt.status_code,
            error=attempt.error,
        )
    )
    session.execute(
        update(DeliveryRow)
        .where(
            DeliveryRow.id == held.id,
            DeliveryRow.fence == held.fence,
            DeliveryRow.state.in_([EventState.SENDING, EventState.PENDING]),
        )
        .values(
            state=outcome.state,
            lease_expires_at=None,
            next_attempt_at=func.now() + (outcome.retry_in or timedelta(0)),
        )
    )
    label = LABELS[outcome.state]
    seconds = observed(WEBHOOK_SECONDS, (label,), attempt.duration_ms / 1000)
    counted = {reading_name(WEBHOOK_ATTEMPTS, (label,)): 1, **seconds}
    usage.add(session, held.tenant_id, counted)
    if outcome.disable is not None and held.endpoint_id is not None:
        endpoints.disable(session, held.endpoint_id, reason=outcome.disable)
    wake_dispatcher(session)


def return_expired(session: Session, *, limit: int) -> int:
    """Move at most `limit` deliveries with an expired lease back to pending; return how many."""
    expired = EXPIRED.limit(limit).with_for_update(skip_locked=True).cte("expired")
    returned = session.execute(
        update(DeliveryRow)
        .where(DeliveryRow.id == expired.c.id)
        .values(state=EventState.PENDING, lease_expires_at=None, next_attempt_at=func.now(), ticketed_at=None)
        .returning(DeliveryRow.id)
    )
    return len(returned.all())


def replay(
    session: Session,
    *,
    event_id: str | None = None,
    endpoint_id: str | None = None,
    states: Iterable[EventState] = SETTLED_OR_WAITING,
    limit: int = 1000,
) -> int:
    """Send at most `limit` deliveries again, each with its whole schedule of retries; return how many.

    `event_id` and `endpoint_id` each narrow the selection. Skips deliveries with an attempt under way and
    those to a disabled endpoint.
    """
    states = list(states)
    query = (
        select(DeliveryRow.id, DeliveryRow.receiver)
        .outerjoin(WebhookEndpointRow, WebhookEndpointRow.id == DeliveryRow.endpoint_id)
        .where(
            DeliveryRow.state.in_(states),
            DeliveryRow.endpoint_id.is_(None) | WebhookEndpointRow.is_enabled,
        )
        .order_by(DeliveryRow.created_at)
        .limit(limit)
    )
    if event_id is not None:
        query = query.where(DeliveryRow.event_id == event_id)
    if endpoint_id is not None:
        query = query.where(DeliveryRow.endpoint_id == endpoint_id)
    found = session.execute(query).all()
    # Lock the receivers first, as `claim` does.
    receivers.unpause(session, {row.receiver for row in found})
    replayed = session.scalars(
        update(DeliveryRow)
        .where(DeliveryRow.id.in_([row.id for row in found]), DeliveryRow.state.in_(states))
        .values(
            state=EventState.PENDING,
            attempts=0,
            next_attempt_at=func.now(),
            ticketed_at=None,
        )
        .returning(DeliveryRow.id)
    ).all()
    wake_dispatcher(session)
    return len(replayed)
