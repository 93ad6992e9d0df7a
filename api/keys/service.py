"""Creates, lists, rotates and revokes API keys. Each function is one transaction, with its audit entry."""

from collections.abc import Collection
from datetime import timedelta

from sqlalchemy.orm import Session

from api.dependencies import Services, insufficient_scope
from api.errors import NotFoundError
from api.guards.auth import Caller
from api.keys.schemas import KeyAnswer, KeyWithSecret, NewKey
from api.tenants.service import may_see
from worker.contract.access import Scope
from worker.store.tenants import api_keys, audit, tenants
from worker.store.tenants.api_keys import ApiKey


def visible(deployment: Services, caller: Caller, tenant: str | None) -> list[KeyAnswer]:
    """Return the keys of a tenant, or all that the caller may administer.

    Raises:
        PermissionDeniedError: the tenant is another's, and the caller may not administer all tenants.

    """
    if tenant is not None and not may_see(caller, tenant):
        raise insufficient_scope(Scope.DEPLOYMENT)
    if tenant is None and Scope.DEPLOYMENT not in caller.scopes:
        tenant = caller.tenant_id
    with deployment.store.transaction() as session:
        return [KeyAnswer.model_validate(one) for one in api_keys.every(session, tenant)]


def create(deployment: Services, caller: Caller, body: NewKey) -> KeyWithSecret:
    """Create a key; return it whole, the only time.

    Raises:
        PermissionDeniedError: the key is for another tenant, or for all, and the caller may not do that.

    """
    tenant = body.tenant or caller.tenant_id
    if not may_see(caller, tenant) or not _may_give(caller, body.scopes):
        raise insufficient_scope(Scope.DEPLOYMENT)
    seconds = body.expires_in_seconds
    with deployment.store.transaction() as session:
        if tenants.create(session, tenant):
            audit.record(session, caller.actor, "tenant.create", tenant, {}, tenant_id=tenant)
        key = api_keys.create(
            session,
            tenant,
            name=body.name,
            scopes=body.scopes,
            expires_in=None if seconds is None else timedelta(seconds=seconds),
        )
        details = {"name": body.name, "scopes": body.scopes}
        audit.record(session, caller.actor, "key.create", api_keys.prefix_of(key), details, tenant_id=tenant)
        return _whole(session, key)


def rotate(deployment: Services, caller: Caller, prefix: str, *, overlap_seconds: int) -> KeyWithSecret:
    """Replace a key, which works for a while longer; return the new key whole.

    Raises:
        NotFoundError: no such key, or it has expired or was revoked.
        PermissionDeniedError: the key may administer all tenants, and the caller may not.

    """
    with deployment.store.transaction() as session:
        old = _administered(session, caller, prefix)
        key = api_keys.rotate(session, prefix, old_works_for=timedelta(seconds=overlap_seconds))
        if key is None:
            raise NotFoundError(f"The key {prefix} has expired or was revoked.", param="prefix")
        details = {"new": api_keys.prefix_of(key), "old_works_seconds": overlap_seconds}
        audit.record(session, caller.actor, "key.rotate", prefix, details, tenant_id=old.tenant_id)
        return _whole(session, key)


def revoke(deployment: Services, caller: Caller, prefix: str) -> None:
    """Revoke a key; a key that was revoked before stays so.

    Raises:
        NotFoundError: no such key.
        PermissionDeniedError: the key may administer all tenants, and the caller may not.

    """
    with deployment.store.transaction() as session:
        old = _administered(session, caller, prefix)
        if api_keys.revoke(session, prefix):
            audit.record(session, caller.actor, "key.revoke", prefix, {}, tenant_id=old.tenant_id)


def _administered(session: Session, caller: Caller, prefix: str) -> ApiKey:
    found = api_keys.find(session, prefix)
    if found is None or not may_see(caller, found.tenant_id):
        raise NotFoundError(f"There is no key {prefix}.", param="prefix")
    if not _may_give(caller, found.scopes):
        raise insufficient_scope(Scope.DEPLOYMENT)
    return found


def _may_give(caller: Caller, scopes: Collection[Scope]) -> bool:
    """Return whether the caller may hand out these scopes: nobody makes an operator of itself."""
    return Scope.DEPLOYMENT not in scopes or Scope.DEPLOYMENT in caller.scopes


def _whole(session: Session, key: str) -> KeyWithSecret:
    record = api_keys.find(session, api_keys.prefix_of(key))
    return KeyWithSecret(**KeyAnswer.model_validate(record).model_dump(), key=key)
