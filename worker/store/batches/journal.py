"""Record the life of a batch in the journal: accepted, asked to change, ended."""

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from worker.contract.models import Model
from worker.contract.states import Lane
from worker.store.database import journal
from worker.store.database.session import tenant_of
from worker.store.rows.batches import BatchRow

TROUBLE = {"lease expired", "request failed for its lost workers"}  # a worker has died


def accepted(
    session: Session,
    batch_id: str,
    lane: Lane,
    num_requests: int,
    priority: int,
    *,
    model: Model | None = None,
    input_file_id: str | None = None,
    retry_of: str | None = None,
) -> None:
    """Record that a batch was written."""
    journal.record(
        session,
        "batch accepted",
        batch=batch_id,
        tenant=tenant_of(session),
        lane=lane,
        requests=num_requests,
        priority=priority,
        model=None if model is None else model.label,
        file=input_file_id,
        retry_of=retry_of,
    )


def of_shards(session: Session, event: str, batch: BatchRow, *shard_ids: int, **named: object) -> None:
    """Record an event of each of these shards; for interactive work, a shard for each request, as DEBUG."""
    level = logging.DEBUG if batch.lane is Lane.INTERACTIVE else logging.INFO
    if event in TROUBLE:
        level = logging.WARNING
    for shard_id in shard_ids:
        of_shard = {"batch": batch.id, "shard": shard_id, "tenant": batch.tenant_id, **named}
        journal.record(session, event, level=level, **of_shard)


def lost(session: Session, batch_id: str, fences: Mapping[int, int]) -> None:
    """Record that saves were refused: another worker claimed these shards since, or the batch has ended."""
    for shard_id, fence in fences.items():
        journal.record(
            session, "lease lost", level=logging.WARNING, batch=batch_id, shard=shard_id, fence=fence
        )


def started(session: Session, batch: BatchRow, *, at: datetime) -> None:
    """Record the first claim of a batch."""
    of_batch: dict[str, Any] = {
        "batch": batch.id,
        "shard": None,
        "tenant": batch.tenant_id,
        "lane": batch.lane,
    }
    journal.record(session, "batch started", queued_seconds=_seconds(batch.created_at, at), **of_batch)


def changed(session: Session, event: str, batch: BatchRow, **named: object) -> None:
    """Record a change of a batch; if a customer asked for it, the fields of the HTTP request say who."""
    of_batch: dict[str, Any] = {"batch": batch.id, "shard": None, "tenant": batch.tenant_id}
    journal.record(session, event, **of_batch | named)


def ended(session: Session, batch: BatchRow) -> None:
    """Record the end of a batch: its requests by outcome, its tokens and its times."""
    running = _seconds(batch.started_at, batch.finished_at)
    journal.record(
        session,
        "batch ended",
        batch=batch.id,
        shard=None,  # not of the run that ended it
        tenant=batch.tenant_id,
        status=batch.status,
        error=batch.error_code,
        completed=batch.num_completed,
        failed=batch.num_failed,
        cancelled=batch.num_cancelled,
        input_tokens=batch.input_tokens,
        output_tokens=batch.output_tokens,
        output_tokens_per_second=round(batch.output_tokens / running, 1) if running else None,
        queued_seconds=_seconds(batch.created_at, batch.started_at or batch.finished_at),
        running_seconds=running,
        total_seconds=_seconds(batch.created_at, batch.finished_at),
    )


def _seconds(begin: datetime | None, end: datetime | None) -> float | None:
    return None if begin is None or end is None else round((end - begin).total_seconds(), 3)
