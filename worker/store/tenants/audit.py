"""Log administrative acts, each in the transaction that performs it. Entries never change."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from worker.store.rows.access import AuditRow
from worker.store.rows.views import view_of


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An actor's act on a target, and the tenant that it concerns. `details` hold no secret."""

    id: int
    created_at: datetime
    tenant_id: str
    actor: str
    act: str
    target: str
    details: Mapping[str, Any]


def record(
    session: Session, actor: str, act: str, target: str, details: Mapping[str, Any], *, tenant_id: str
) -> None:
    """Log an act that concerns a tenant; the entry stands if the transaction commits."""
    session.add(AuditRow(actor=actor, act=act, target=target, details=dict(details), tenant_id=tenant_id))


def page(session: Session, *, before: int | None = None, limit: int = 100) -> list[AuditEntry]:
    """Return entries, the newest first; `before` is the last id of the page before."""
    statement = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
    if before is not None:
        statement = statement.where(AuditRow.id < before)
    return [view_of(AuditEntry, row) for row in session.scalars(statement)]
