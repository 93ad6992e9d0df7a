"""Store webhook endpoints: receivers registered once. Must not know HTTP; secrets come and go sealed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import Select, func, insert, select, update
from sqlalchemy.orm import Session

from worker.contract.states import EventState
from worker.store.database import cursors
from worker.store.rows.views import view_of
from worker.store.rows.webhooks import DeliveryRow, WebhookEndpointRow


@dataclass(frozen=True, slots=True)
class NewEndpoint:
    """An endpoint to be registered."""

    url: str
    event_types: list[str]
    description: str
    is_enabled: bool
    sealed_secret: str


@dataclass(frozen=True, slots=True)
class EndpointView:
    """Current state of an endpoint, without its secret."""

    id: str
    url: str
    event_types: list[str]
    description: str
    is_enabled: bool
    disabled_reason: str | None
    old_secret_expires_at: datetime | None
    created_at: datetime


def create(session: Session, tenant: str, new: NewEndpoint) -> EndpointView:
    """Register an endpoint."""
    row = session.scalars(
        insert(WebhookEndpointRow)
        .values(
            id=f"we_{uuid4().hex}",
            tenant_id=tenant,
            url=new.url,
            event_types=new.event_types,
            description=new.description,
            is_enabled=new.is_enabled,
            disabled_reason=None if new.is_enabled else "by its owner",
            sealed_secret=new.sealed_secret,
        )
        .returning(WebhookEndpointRow)
    ).one()
    return view_of(EndpointView, row)


def get(session: Session, tenant: str, endpoint_id: str) -> EndpointView | None:
    """Return a tenant's endpoint, or None if there is none."""
    row = session.scalar(_of(tenant).where(WebhookEndpointRow.id == endpoint_id))
    return None if row is None else view_of(EndpointView, row)


def page(session: Session, tenant: str, *, after: str | None, limit: int) -> list[EndpointView]:
    """Return a tenant's endpoints after `after`, oldest first; raises UnknownCursorError."""
    query = cursors.follow(
        session,
        _of(tenant),
        (WebhookEndpointRow.created_at, WebhookEndpointRow.id),
        after=after,
        limit=limit,
        is_newest_first=False,
        is_visible=WebhookEndpointRow.tenant_id == tenant,
    )
    return [view_of(EndpointView, row) for row in session.scalars(query)]


def count(session: Session, tenant: str) -> int:
    """Return how many endpoints a tenant has."""
    return session.scalar(select(func.count()).select_from(_of(tenant).subquery())) or 0


def change(session: Session, tenant: str, endpoint_id: str, values: dict[str, Any]) -> EndpointView | None:
    """Change columns of an endpoint; None: there is none.

    Disabling an endpoint turns its pending deliveries into dead letters.
    """
    row = _locked(session, tenant, endpoint_id)
    if row is None:
        return None
    for name, value in values.items():
        setattr(row, name, value)
    if "is_enabled" in values:
        row.disabled_reason = None if row.is_enabled else "by its owner"
    session.flush()
    if not row.is_enabled:
        _bury(session, endpoint_id)
    return view_of(EndpointView, row)


def rotate(
    session: Session, tenant: str, endpoint_id: str, *, sealed_secret: str, overlap: timedelta
) -> EndpointView | None:
    """Give an endpoint a new secret; the old one signs too until `overlap` has passed."""
    row = _locked(session, tenant, endpoint_id)
    if row is None:
        return None
    row.old_sealed_secret = row.sealed_secret if overlap else None
    row.old_secret_expires_at = func.now() + overlap if overlap else None
    row.sealed_secret = sealed_secret
    session.flush()
    session.refresh(row)
    return view_of(EndpointView, row)


def forget(session: Session, tenant: str, endpoint_id: str) -> bool:
    """Delete an endpoint and its secrets; its deliveries stay in the delivery log."""
    row = _locked(session, tenant, endpoint_id)
    if row is None:
        return False
    row.is_enabled, row.disabled_reason, row.deleted_at = False, "deleted", func.now()
    row.sealed_secret = row.old_sealed_secret = row.old_secret_expires_at = None
    session.flush()
    _bury(session, endpoint_id)
    return True


def disable(session: Session, endpoint_id: str, *, reason: str) -> None:
    """Disable an endpoint of any tenant; its pending deliveries become dead letters."""
    session.execute(
        update(WebhookEndpointRow)
        .where(WebhookEndpointRow.id == endpoint_id, WebhookEndpointRow.is_enabled)
        .values(is_enabled=False, disabled_reason=reason)
    )
    _bury(session, endpoint_id)


def reseal(session: Session, change: Callable[[str], str]) -> int:
    """Pass every sealed secret through `change`; return the number of endpoints."""
    rows = session.scalars(
        select(WebhookEndpointRow).where(WebhookEndpointRow.deleted_at.is_(None)).with_for_update()
    ).all()
    for row in rows:
        row.sealed_secret = row.sealed_secret and change(row.sealed_secret)
        row.old_sealed_secret = row.old_sealed_secret and change(row.old_sealed_secret)
    return len(rows)


def listening(session: Session, tenant: str | None, event_type: str) -> Sequence[str]:
    """Return the ids of the endpoints that want an event of this type."""
    return session.scalars(
        select(WebhookEndpointRow.id).where(
            WebhookEndpointRow.tenant_id == tenant,
            WebhookEndpointRow.deleted_at.is_(None),
            WebhookEndpointRow.is_enabled,
            WebhookEndpointRow.event_types.contains([event_type]),
        )
    ).all()


def _of(tenant: str) -> Select[WebhookEndpointRow]:
    """Return the only query through which a tenant sees endpoints."""
    return select(WebhookEndpointRow).where(
        WebhookEndpointRow.tenant_id == tenant, WebhookEndpointRow.deleted_at.is_(None)
    )


def _locked(session: Session, tenant: str, endpoint_id: str) -> WebhookEndpointRow | None:
    return session.scalar(_of(tenant).where(WebhookEndpointRow.id == endpoint_id).with_for_update())


def _bury(session: Session, endpoint_id: str) -> None:
    session.execute(
        update(DeliveryRow)
        .where(DeliveryRow.endpoint_id == endpoint_id, DeliveryRow.state == EventState.PENDING)
        .values(state=EventState.FAILED, ticketed_at=None)
    )
