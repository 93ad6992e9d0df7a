"""Serves /v1/audit, the log of administrative acts."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from api.dependencies import ADMIN_OR_DEPLOYMENT, AdministeredDependency
from api.errors import documented
from api.inputs.cursors import cut
from worker.store.tenants import audit

router = APIRouter(prefix="/v1/audit", tags=["administration"])


class AuditEntryAnswer(BaseModel):
    """An administrative act."""

    id: int
    created_at: datetime
    tenant: str = Field(description="whose key it was done to, or to whom")
    actor: str
    act: str
    target: str
    details: dict[str, Any]


class AuditPage(BaseModel):
    """Acts, newest first. Pass `next` as `before` to read on; null: there are no more."""

    data: list[AuditEntryAnswer]
    next: int | None


@router.get(
    "",
    dependencies=[ADMIN_OR_DEPLOYMENT],
    responses=documented(401, 403, 422, 429, 503),
    summary="Read the audit log",
)
def read_audit_log(
    services: AdministeredDependency,
    before: Annotated[int | None, Query(ge=1, lt=2**63, description="The `next` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> AuditPage:
    """Return the acts on the caller's tenant, newest first; with the scope `deployment`, on all tenants."""
    with services.store.transaction() as session:
        entries, has_more = cut(audit.page(session, before=before, limit=limit + 1), limit)
    data = [
        AuditEntryAnswer(
            id=e.id,
            created_at=e.created_at,
            tenant=e.tenant_id,
            actor=e.actor,
            act=e.act,
            target=e.target,
            details=dict(e.details),
        )
        for e in entries
    ]
    return AuditPage(data=data, next=data[-1].id if has_more else None)
