"""Serves /v1/keys: create, list, rotate and revoke API keys."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query

from api.dependencies import ADMIN_OR_DEPLOYMENT, CallerDependency, DeploymentDependency
from api.errors import documented
from api.inputs.schema import Text
from api.keys import service
from api.keys.schemas import KeyList, KeyRotation, KeyWithSecret, NewKey
from api.tenants.schemas import TenantName

router = APIRouter(prefix="/v1/keys", tags=["administration"], dependencies=[ADMIN_OR_DEPLOYMENT])

Prefix = Annotated[Text, Path(max_length=64, examples=["hr_0123456789ab"])]


@router.get("", responses=documented(401, 403, 422, 429, 503), summary="List API keys")
def list_keys(
    deployment: DeploymentDependency,
    caller: CallerDependency,
    tenant: Annotated[TenantName | None, Query(description="Only this tenant's keys.")] = None,
) -> KeyList:
    """Return the keys of the caller's tenant; with the scope `deployment`, of all tenants or of one."""
    return KeyList(data=service.visible(deployment, caller, tenant))


@router.post(
    "",
    status_code=HTTPStatus.CREATED,
    responses=documented(400, 401, 403, 422, 429, 503),
    summary="Create an API key",
)
def create_key(body: NewKey, deployment: DeploymentDependency, caller: CallerDependency) -> KeyWithSecret:
    """Create a key and return it whole, once. Only a caller with `deployment` may give that scope."""
    return service.create(deployment, caller, body)


@router.post(
    "/{prefix}/rotate", responses=documented(401, 403, 404, 422, 429, 503), summary="Replace an API key"
)
def rotate_key(
    prefix: Prefix,
    deployment: DeploymentDependency,
    caller: CallerDependency,
    body: KeyRotation | None = None,
) -> KeyWithSecret:
    """Create a key with the rights of another and return it whole, once. The old one works for a while."""
    seconds = (body or KeyRotation()).overlap_seconds
    return service.rotate(deployment, caller, prefix, overlap_seconds=seconds)


@router.delete(
    "/{prefix}",
    status_code=HTTPStatus.NO_CONTENT,
    responses=documented(401, 403, 404, 422, 429, 503),
    summary="Revoke an API key",
)
def revoke_key(prefix: Prefix, deployment: DeploymentDependency, caller: CallerDependency) -> None:
    """Revoke a key at once. Its entry stays in the list."""
    service.revoke(deployment, caller, prefix)
