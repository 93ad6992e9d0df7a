"""Make one attempt at a delivery, from claim to record; the delivery's row then says what comes next."""

from dataclasses import dataclass
from datetime import timedelta

from worker.contract.states import EventState
from worker.store.database.renewing import renewing
from worker.store.database.session import Store
from worker.store.webhooks import deliveries
from worker.store.webhooks.deliveries import Attempt, DeliveryClaim, DeliveryOutcome
from worker.webhooks.backoff import retry_in
from worker.webhooks.sealing import Sealer, SealError
from worker.webhooks.sender import Answer, send
from worker.webhooks.targets import Targets

GONE = 410
TOO_MANY_REQUESTS = 429
SERVER_ERROR = 500
# Renewed while the attempt lasts, so an event is sent twice only if its sender died, hung or lost Postgres,
# and then soon.
LEASE = timedelta(seconds=6)
RENEW_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class Deliverer:
    """Delivers events: signs them, posts them, and records the outcomes.

    Args:
        store: Where deliveries are claimed and recorded.
        secrets: `whsec_...`, the deployment's own; callbacks are signed with each of them.
        sealer: Opens the secrets of endpoints.
        targets: Decides which addresses may be connected to.
        timeout: Limit for the whole of one attempt.
        most_at_once: Limit of deliveries to one receiver at once, over all workers.

    """

    store: Store
    secrets: list[str]
    sealer: Sealer
    targets: Targets
    timeout: timedelta
    most_at_once: int

    def deliver(self, delivery_id: str) -> tuple[Answer, DeliveryOutcome] | None:
        """Claim a delivery, post it, record the attempt.

        Returns the receiver's answer and what becomes of the delivery; None if it could not be claimed.
        """
        with self.store.transaction() as session:
            held = deliveries.claim(session, delivery_id, lease=LEASE, most_at_once=self.most_at_once)
        if held is None:
            return None
        with renewing(
            self.store,
            lambda session: deliveries.renew(session, held, lease=LEASE),
            every_seconds=RENEW_SECONDS,
            at_most_seconds=self.timeout.total_seconds() + LEASE.total_seconds(),
        ):
            answer = self._send(held)
        outcome = _outcome(answer, held.attempt)
        with self.store.transaction() as session:
            attempt = Attempt(answer.duration_ms, answer.status_code, answer.error)
            deliveries.record_attempt(session, held, attempt, outcome)
        return answer, outcome

    def _send(self, held: DeliveryClaim) -> Answer:
        try:
            secrets = self._secrets(held)
        except SealError as error:
            return Answer(0, error=str(error), was_sent=False)
        return send(
            held.url,
            event_id=held.event_id,
            body=held.body,
            secrets=secrets,
            timeout_seconds=self.timeout.total_seconds(),
            targets=self.targets,
        )

    def _secrets(self, held: DeliveryClaim) -> list[str]:
        found = [self.sealer.open(sealed) for sealed in held.sealed_secrets] or self.secrets
        if not found:
            raise SealError("HEADRACE_WEBHOOK_SECRET is not set, so callbacks cannot be signed")
        return found


def _outcome(answer: Answer, attempt: int) -> DeliveryOutcome:
    if answer.is_delivered:
        return DeliveryOutcome(EventState.DELIVERED)
    if answer.status_code == GONE:
        return DeliveryOutcome(EventState.FAILED, disable="it answered 410 Gone")
    is_healthy = None
    if answer.was_sent:
        status = answer.status_code
        is_healthy = status is not None and status < SERVER_ERROR and status != TOO_MANY_REQUESTS
    wait = retry_in(attempt, retry_after=answer.retry_after)
    state = EventState.FAILED if wait is None else EventState.PENDING
    return DeliveryOutcome(state, retry_in=wait, is_healthy=is_healthy)
