"""Read the operators' overview of the deployment: live batches, failures, workers and receivers."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Double, cast, func, select, text, true
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from worker.contract.access import NOBODY
from worker.contract.meters import Readings
from worker.contract.states import LIVE_STATUSES, BatchStatus, EventState, Lane
from worker.store.batches.batch_views import BatchView, to_views, views
from worker.store.rows.batches import HAS_FAILED, BatchRow
from worker.store.rows.meters import MeterRow
from worker.store.rows.requests import ResultRow
from worker.store.rows.views import view_of
from worker.store.rows.webhooks import DeliveryRow, ReceiverRow, WebhookEndpointRow
from worker.store.rows.workers import WorkerRow
from worker.store.watching.workers import SEEN_WITHIN
from worker.values.outcomes import Outcome

# An example of a batch's failures is sought among this many of its last results.
EXAMPLE_AMONG = 200


@dataclass(frozen=True, slots=True)
class Failure:
    """A batch that has ended and in which something failed, with its own error or a request's."""

    batch: BatchView
    error_code: str | None
    error_message: str | None


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """A live worker and its recent counts."""

    name: str
    queue: str
    slots: int
    info: dict[str, Any]
    started_at: datetime
    seen_at: datetime
    readings: Readings
    seconds: float  # time that the readings cover


@dataclass(frozen=True, slots=True)
class FailingReceiver:
    """A receiver that did not accept its last deliveries."""

    receiver: str
    url: str | None  # of an endpoint; None: callbacks
    num_failures: int
    paused_until: datetime | None
    num_waiting: int


@dataclass(frozen=True, slots=True)
class DeliveryCounts:
    """Numbers of deliveries by state."""

    waiting: int  # for their first attempt
    retrying: int
    failed: int


def live_batches(session: Session, *, limit: int) -> list[BatchView]:
    """Return batches that have not ended, running ones first, then oldest first."""
    query = (
        views()
        .where(BatchRow.status.in_(LIVE_STATUSES), BatchRow.lane == Lane.BATCH)
        .order_by(BatchRow.status != BatchStatus.PROCESSING, BatchRow.created_at, BatchRow.id)
        .limit(limit)
    )
    return to_views(session, query)


def failures(session: Session, *, limit: int) -> list[Failure]:
    """Return ended batches in which something failed, the last to end first."""
    query = views().where(text(HAS_FAILED), BatchRow.tenant_id != NOBODY)
    query = query.order_by(BatchRow.finished_at.desc()).limit(limit)
    found = to_views(session, query)
    examples = _examples(session, [view.id for view in found])
    return [
        Failure(view, view.error_code or code, view.error_message or message)
        for view in found
        for code, message in [examples.get(view.id, (None, None))]
    ]


def _examples(session: Session, batch_ids: Sequence[str]) -> dict[str, tuple[str | None, str | None]]:
    """Return the error (code, message) of one failed request of each batch, by batch id."""
    batch = select(BatchRow.id).where(BatchRow.id.in_(batch_ids)).subquery()
    last = (
        select(ResultRow.sequence, ResultRow.outcome, ResultRow.error_code, ResultRow.error_message)
        .where(ResultRow.batch_id == batch.c.id, ResultRow.sequence.is_not(None))
        .order_by(ResultRow.sequence.desc())
        .limit(EXAMPLE_AMONG)
        .lateral()
    )
    rows = session.execute(
        select(batch.c.id, last.c.error_code, last.c.error_message)
        .join(last, true())
        .where(last.c.outcome == Outcome.FAILED)
        .ext(distinct_on(batch.c.id))
        .order_by(batch.c.id, last.c.sequence.desc())
    )
    return {batch_id: (code, message) for batch_id, code, message in rows}


def worker_loads(session: Session, *, minutes: int) -> list[WorkerLoad]:
    """Return every live worker with its counts of the last `minutes`, the current one included."""
    now, since = session.execute(
        select(func.now(), func.date_trunc("minute", func.now()) - timedelta(minutes=minutes - 1))
    ).one()
    rows = session.scalars(
        select(WorkerRow)
        .where(WorkerRow.seen_at > func.now() - SEEN_WITHIN)
        .order_by(WorkerRow.queue.desc(), WorkerRow.name)
    ).all()
    each = func.jsonb_each_text(MeterRow.readings).table_valued("key", "value")
    counted: dict[str, dict[str, float]] = {}
    for name, key, value in session.execute(
        select(MeterRow.worker, each.c.key, func.sum(cast(each.c.value, Double)))
        .join(each, onclause=true())
        .where(MeterRow.minute >= since)
        .group_by(MeterRow.worker, each.c.key)
    ):
        counted.setdefault(name, {})[key] = value
    return [
        view_of(
            WorkerLoad,
            row,
            readings=counted.get(row.name, {}),
            seconds=(now - max(since, min(row.started_at, now))).total_seconds(),
        )
        for row in rows
    ]


def failing_receivers(session: Session, *, limit: int) -> list[FailingReceiver]:
    """Return receivers whose last delivery failed, most failures in a row first."""
    waiting = (
        select(func.count())
        .where(DeliveryRow.receiver == ReceiverRow.key, DeliveryRow.state == EventState.PENDING)
        .scalar_subquery()
    )
    rows = session.execute(
        select(ReceiverRow, WebhookEndpointRow.url, waiting)
        .outerjoin(WebhookEndpointRow, WebhookEndpointRow.id == ReceiverRow.key)
        .where(ReceiverRow.num_failures > 0)
        .order_by(ReceiverRow.num_failures.desc(), ReceiverRow.key)
        .limit(limit)
    )
    return [
        view_of(FailingReceiver, row, receiver=row.key, url=url, num_waiting=count)
        for row, url, count in rows
    ]


def delivery_counts(session: Session) -> DeliveryCounts:
    """Count the deliveries that wait for a first attempt, wait for a retry, or have failed for good."""
    pending = DeliveryRow.state == EventState.PENDING
    waiting, retrying = session.execute(
        select(
            func.count().filter(DeliveryRow.attempts == 0), func.count().filter(DeliveryRow.attempts > 0)
        ).where(pending)
    ).one()
    failed = session.scalar(select(func.count()).where(DeliveryRow.state == EventState.FAILED))
    return DeliveryCounts(waiting, retrying, failed or 0)
