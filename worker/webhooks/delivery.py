"""One attempt from claim to record: the event row says what comes next."""

import logging
from collections.abc import Sequence
from datetime import timedelta

from worker.contract.states import EventState
from worker.store import webhooks
from worker.store.session import Store
from worker.store.webhooks import Attempt
from worker.webhooks.backoff import retry_in
from worker.webhooks.sender import Answer, send
from worker.webhooks.targets import IPNetwork

logger = logging.getLogger(__name__)

GONE = 410
# The lease outlives the attempt, so an event is sent twice only if its sender died or hung.
LEASE_MARGIN = timedelta(seconds=30)


def deliver(
    store: Store, event_id: str, *, secret: str, timeout: timedelta, allowed: Sequence[IPNetwork]
) -> Answer | None:
    """Claim an event, post it, record the attempt; None when there was nothing to deliver."""
    with store.transaction() as session:
        held = webhooks.claim(session, event_id, lease=timeout + LEASE_MARGIN)
    if held is None:
        return None
    answer = send(
        held.url,
        event_id=held.event_id,
        body=held.body,
        secret=secret,
        timeout_seconds=timeout.total_seconds(),
        allowed=allowed,
    )
    state, wait = _next(answer, held.attempt)
    outcome = f"HTTP {answer.status_code}" if answer.status_code else answer.error
    logger.info("%s attempt %d: %s, now %s", event_id, held.attempt, outcome, state)
    with store.transaction() as session:
        attempt = Attempt(answer.duration_ms, answer.status_code, answer.error)
        webhooks.record_attempt(session, held, attempt, state=state, retry_in=wait)
    return answer


def _next(answer: Answer, attempt: int) -> tuple[EventState, timedelta | None]:
    if answer.is_delivered:
        return EventState.DELIVERED, None
    wait = retry_in(attempt, retry_after=answer.retry_after)
    if answer.status_code == GONE or wait is None:
        return EventState.FAILED, None
    return EventState.PENDING, wait
