"""/v1/audit: what was done to keys and tenants."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel

from api.dependencies import ADMIN, DeploymentDependency
from api.errors import documented
from worker.store import audit

router = APIRouter(prefix="/v1/audit", tags=["administration"])


class AuditEntryAnswer(BaseModel):
    """An administrative act."""

    id: int
    created_at: datetime
    actor: str
    act: str
    target: str
    details: dict[str, Any]


class AuditPage(BaseModel):
    """Acts, the newest first. `next` goes into `before` for the page after; None: that was all."""

    data: list[AuditEntryAnswer]
    next: int | None


@router.get(
    "", dependencies=[ADMIN], responses=documented(401, 403, 422, 429, 503), summary="Read the audit log"
)
def read_audit_log(
    deployment: DeploymentDependency,
    before: Annotated[int | None, Query(ge=1, lt=2**63, description="The `next` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> AuditPage:
    """Return what was done to keys and tenants, of the whole deployment, the newest first."""
    with deployment.store.transaction() as session:
        entries = audit.page(session, before=before, limit=limit)
    data = [
        AuditEntryAnswer(
            id=e.id,
            created_at=e.created_at,
            actor=e.actor,
            act=e.act,
            target=e.target,
            details=dict(e.details),
        )
        for e in entries
    ]
    return AuditPage(data=data, next=data[-1].id if len(data) == limit else None)
