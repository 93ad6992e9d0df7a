"""Serves /v1/tenants: list, look at and change tenants."""

from typing import Annotated

from fastapi import APIRouter, Path

from api.dependencies import ADMIN_OR_DEPLOYMENT, DEPLOYMENT, CallerDependency, DeploymentDependency
from api.errors import documented
from api.tenants import service
from api.tenants.schemas import TenantAnswer, TenantChange, TenantList, TenantName

router = APIRouter(prefix="/v1/tenants", tags=["administration"])

Name = Annotated[TenantName, Path()]


@router.get(
    "", dependencies=[ADMIN_OR_DEPLOYMENT], responses=documented(401, 403, 429, 503), summary="List tenants"
)
def list_tenants(deployment: DeploymentDependency, caller: CallerDependency) -> TenantList:
    """Return the caller's tenant; with the scope `deployment`, all tenants."""
    return TenantList(data=service.visible(deployment, caller))


@router.get(
    "/{tenant}",
    dependencies=[ADMIN_OR_DEPLOYMENT],
    responses=documented(401, 403, 404, 422, 429, 503),
    summary="Look at a tenant",
)
def get_tenant(tenant: Name, deployment: DeploymentDependency, caller: CallerDependency) -> TenantAnswer:
    """Return a tenant's share, quotas and rights."""
    return service.get(deployment, caller, tenant)


@router.patch(
    "/{tenant}",
    dependencies=[DEPLOYMENT],
    responses=documented(401, 403, 422, 429, 503),
    summary="Create or change a tenant",
)
def change_tenant(
    tenant: Name, body: TenantChange, deployment: DeploymentDependency, caller: CallerDependency
) -> TenantAnswer:
    """Change a tenant's share, quotas or rights. A tenant that does not exist is created."""
    return service.change(deployment, caller, tenant, body)
