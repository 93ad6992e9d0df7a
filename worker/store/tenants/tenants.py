"""Store tenants: their share of the workers, their limits and rights."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from worker.store.database.session import tenant_of
from worker.store.rows.access import TenantRow
from worker.store.rows.views import view_of


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """Quotas of a tenant, and its rate of calls. None: no limit."""

    max_batches: int | None = None
    max_requests: int | None = None
    max_tokens: int | None = None
    max_bytes: int | None = None
    max_file_bytes: int | None = None
    calls_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant and its settings."""

    id: str
    weight: int
    limits: TenantLimits
    may_use_semantic_cache: bool
    allows_reuse: bool
    created_at: datetime


def create(session: Session, tenant_id: str) -> bool:
    """Create a tenant with a weight of 1 and no limits; return False if it exists."""
    statement = insert(TenantRow).values(id=tenant_id).on_conflict_do_nothing().returning(TenantRow.id)
    return session.scalar(statement) is not None


def change(session: Session, tenant_id: str, settings: Mapping[str, int | None]) -> bool:
    """Set the given ones of a tenant's weight, limits and rights; return False if there is no such tenant."""
    statement = update(TenantRow).where(TenantRow.id == tenant_id).values(settings).returning(TenantRow.id)
    return session.scalar(statement) is not None


def may_use_semantic_cache(session: Session) -> bool:
    """Return whether the session's tenant may get the answer to another, similar prompt."""
    tenant = session.get(TenantRow, tenant_of(session))
    return tenant is not None and tenant.may_use_semantic_cache


def allows_reuse(session: Session) -> bool:
    """Return whether the session's tenant allows its stored work to serve for tuning and training."""
    tenant = session.get(TenantRow, tenant_of(session))
    return tenant is not None and tenant.allows_reuse


def find(session: Session, tenant_id: str) -> Tenant | None:
    """Return a tenant, or None."""
    row = session.get(TenantRow, tenant_id)
    return None if row is None else _to_tenant(row)


def every(session: Session) -> list[Tenant]:
    """Return all tenants by name."""
    return [_to_tenant(row) for row in session.scalars(select(TenantRow).order_by(TenantRow.id))]


def _to_tenant(row: TenantRow) -> Tenant:
    return view_of(Tenant, row, limits=view_of(TenantLimits, row))
