"""Webhook events and the attempts to deliver them. Knows no HTTP and no signatures."""

from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

from sqlalchemy import func, insert, select, update
from sqlalchemy.orm import Session

from worker.contract.events import INLINE_OUTPUT_BYTES, INLINE_OUTPUTS, BatchEnded
from worker.contract.results import Output, num_bytes
from worker.contract.states import EventState
from worker.store import requests
from worker.store.notify import wake_dispatcher
from worker.store.tables import BatchRow, DeliveryAttemptRow, WebhookEventRow


@dataclass(frozen=True, slots=True)
class EventClaim:
    """A webhook event held for one attempt. `attempt` counts from 1."""

    event_id: str
    url: str
    body: str
    fence: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of one attempt. A status code, an error, or both."""

    duration_ms: int
    status_code: int | None
    error: str | None


def record_end(session: Session, batch: BatchRow) -> None:
    """Write the event of a batch that has just ended, if anybody asked to be called."""
    if batch.callback_url is None or batch.finished_at is None:
        return
    event = BatchEnded(
        event_id=f"evt_{uuid4().hex}",
        created_at=batch.finished_at,
        batch_id=batch.id,
        status=batch.status,
        counts={
            "total": batch.num_requests,
            "pending": 0,
            "completed": batch.num_completed,
            "failed": batch.num_failed,
            "cancelled": batch.num_cancelled,
        },
        usage={
            "input_tokens": batch.input_tokens,
            "input_tokens_details": {"cached_tokens": batch.cached_tokens},
            "output_tokens": batch.output_tokens,
            "total_tokens": batch.input_tokens + batch.output_tokens,
        },
        metadata=batch.metadata_,
        outputs=_inline_outputs(session, batch),
    )
    session.execute(
        insert(WebhookEventRow).values(
            id=event.event_id,
            batch_id=batch.id,
            type=event.type,
            url=batch.callback_url,
            body=event.to_body(),
            state=EventState.PENDING,
        )
    )


def _inline_outputs(session: Session, batch: BatchRow) -> list[Output] | None:
    if batch.num_requests > INLINE_OUTPUTS:
        return None
    outputs = requests.outputs(session, batch.id)
    size = sum(map(num_bytes, outputs))
    return outputs if size <= INLINE_OUTPUT_BYTES else None


def claim(session: Session, event_id: str, *, lease: timedelta) -> EventClaim | None:
    """Take an event that is due; None when there is nothing to take."""
    row = session.execute(
        update(WebhookEventRow)
        .where(
            WebhookEventRow.id == event_id,
            WebhookEventRow.state == EventState.PENDING,
            WebhookEventRow.next_attempt_at <= func.now(),
        )
        .values(
            state=EventState.SENDING,
            fence=WebhookEventRow.fence + 1,
            attempts=WebhookEventRow.attempts + 1,
            lease_expires_at=func.now() + lease,
            ticketed_at=None,
        )
        .returning(WebhookEventRow.url, WebhookEventRow.body, WebhookEventRow.fence, WebhookEventRow.attempts)
    ).one_or_none()
    return None if row is None else EventClaim(event_id, row.url, row.body, row.fence, row.attempts)


def record_attempt(
    session: Session, held: EventClaim, attempt: Attempt, *, state: EventState, retry_in: timedelta | None
) -> None:
    """Log an attempt and move its event on: delivered, failed, or pending again after `retry_in`."""
    session.execute(
        insert(DeliveryAttemptRow).values(
            event_id=held.event_id,
            number=held.attempt,
            duration_ms=attempt.duration_ms,
            status_code=attempt.status_code,
            error=attempt.error,
        )
    )
    session.execute(
        update(WebhookEventRow)
        .where(
            WebhookEventRow.id == held.event_id,
            WebhookEventRow.fence == held.fence,
            WebhookEventRow.state.in_([EventState.SENDING, EventState.PENDING]),
        )
        .values(
            state=state,
            lease_expires_at=None,
            next_attempt_at=func.now() + (retry_in or timedelta(0)),
            settled_at=None if state is EventState.PENDING else func.now(),
        )
    )
    wake_dispatcher(session)


def return_expired(session: Session, *, limit: int) -> int:
    """Return events whose sender died to the pending; count them."""
    expired = (
        select(WebhookEventRow.id)
        .where(WebhookEventRow.state == EventState.SENDING, WebhookEventRow.lease_expires_at <= func.now())
        .limit(limit)
        .with_for_update(skip_locked=True)
        .cte("expired")
    )
    returned = session.execute(
        update(WebhookEventRow)
        .where(WebhookEventRow.id == expired.c.id)
        .values(state=EventState.PENDING, lease_expires_at=None, next_attempt_at=func.now(), ticketed_at=None)
        .returning(WebhookEventRow.id)
    )
    return len(returned.all())


@dataclass(frozen=True, slots=True)
class DeliveryView:
    """How the delivery of a batch's event stands."""

    event_id: str
    state: EventState
    attempts: int
    last_status_code: int | None
    last_error: str | None


def delivery_of(session: Session, batch_id: str) -> DeliveryView | None:
    """Return how the delivery of a batch's event stands; None before the batch ends or without a callback."""
    event = session.scalar(select(WebhookEventRow).where(WebhookEventRow.batch_id == batch_id))
    if event is None:
        return None
    last = session.scalar(
        select(DeliveryAttemptRow)
        .where(DeliveryAttemptRow.event_id == event.id)
        .order_by(DeliveryAttemptRow.number.desc())
        .limit(1)
    )
    return DeliveryView(
        event_id=event.id,
        state=event.state,
        attempts=event.attempts,
        last_status_code=last.status_code if last else None,
        last_error=last.error if last else None,
    )
