"""Write WebhookEvents, each in the transaction of what it reports."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import uuid4

from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session

from worker.contract.callbacks import origin_of
from worker.contract.events import INLINE_OUTPUT_BYTES, INLINE_OUTPUTS, BatchEnded, Ping
from worker.store.database import journal
from worker.store.requests import result_views
from worker.store.rows.batches import BatchRow
from worker.store.rows.webhooks import WebhookEventRow
from worker.store.webhooks import deliveries, endpoints
from worker.values.results import Output, RequestError, num_bytes


def record_end(
    session: Session,
    batch: BatchRow,
    files: Mapping[str, str | None] | None = None,
    outside: Mapping[str, str | None] | None = None,
) -> None:
    """Write the event of a batch that has just ended, if it has a receiver.

    `files`: ids of the files with its results, by the names of their links. `outside`: `output_uri` and
    `output_error` of results in the customer's own bucket.
    """
    tenant = batch.tenant_id
    receiver_of = _receivers(session, tenant, f"batch.{batch.status}", batch.callback_url)
    if not receiver_of or batch.finished_at is None:
        return
    event = BatchEnded(
        event_id=f"evt_{uuid4().hex}",
        created_at=batch.finished_at,
        batch_id=batch.id,
        status=batch.status,
        name=batch.name,
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
        error=None if batch.error_code is None else RequestError(batch.error_code, batch.error_message or ""),
        files={name: file_id for name, file_id in (files or {}).items() if file_id is not None},
        outside=outside or {},
    )
    session.execute(
        insert(WebhookEventRow).values(
            id=event.event_id,
            tenant_id=tenant,
            batch_id=batch.id,
            type=event.type,
            url=batch.callback_url,
            body=event.to_body(),
        )
    )
    deliveries.add(session, event.event_id, receiver_of)
    written: dict[str, Any] = {"event": event.event_id, "type": event.type, "to": len(receiver_of)}
    journal.record(session, "event written", batch=batch.id, shard=None, **written)


def ping(session: Session, tenant: str, endpoint_id: str) -> str:
    """Write a test event for one endpoint; return its id."""
    event = Ping(event_id=f"evt_{uuid4().hex}", created_at=_now(session), endpoint_id=endpoint_id)
    session.execute(
        insert(WebhookEventRow).values(
            id=event.event_id, tenant_id=tenant, type=event.type, body=event.to_body()
        )
    )
    deliveries.add(session, event.event_id, {endpoint_id: endpoint_id})
    return event.event_id


def _receivers(
    session: Session, tenant: str, event_type: str, callback_url: str | None
) -> dict[str | None, str]:
    """Return an event's receivers by endpoint id (None: the callback), each by its circuit breaker's key."""
    found: dict[str | None, str] = {
        endpoint_id: endpoint_id for endpoint_id in endpoints.listening(session, tenant, event_type)
    }
    if callback_url is not None:
        found[None] = f"{tenant} {origin_of(callback_url)}"
    return found


def _inline_outputs(session: Session, batch: BatchRow) -> list[Output] | None:
    if batch.num_requests > INLINE_OUTPUTS:
        return None
    outputs = result_views.outputs(session, batch.id)
    size = sum(map(num_bytes, outputs))
    return outputs if size <= INLINE_OUTPUT_BYTES else None


def _now(session: Session) -> datetime:
    return session.execute(select(func.now())).scalar_one()
