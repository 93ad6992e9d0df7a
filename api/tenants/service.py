"""Reads and changes tenants. Each function is one transaction."""

from api.dependencies import Services
from api.errors import InvalidInputError, NotFoundError
from api.guards.auth import Caller
from api.tenants.schemas import TenantAnswer, TenantChange, to_answer
from worker.contract.access import Scope
from worker.store.tenants import audit, tenants


def visible(deployment: Services, caller: Caller) -> list[TenantAnswer]:
    """Return all tenants to a caller with the scope `deployment`, to others their own."""
    with deployment.store.transaction() as session:
        found = tenants.every(session)
    return [to_answer(one) for one in found if may_see(caller, one.id)]


def get(deployment: Services, caller: Caller, name: str) -> TenantAnswer:
    """Return a tenant.

    Raises:
        NotFoundError: there is none, or the caller may not see it.

    """
    with deployment.store.transaction() as session:
        found = tenants.find(session, name)
    if found is None or not may_see(caller, name):
        raise NotFoundError(f"There is no tenant {name}.", param="tenant")
    return to_answer(found)


def change(deployment: Services, caller: Caller, name: str, body: TenantChange) -> TenantAnswer:
    """Change a tenant, which is created if there is none.

    Raises:
        InvalidInputError: the body changes nothing.

    """
    changes = body.model_dump(exclude_unset=True)
    if not changes:
        raise InvalidInputError("The body changes nothing. Name a weight, a limit or a right.", param="body")
    with deployment.store.transaction() as session:
        if tenants.create(session, name):
            audit.record(session, caller.actor, "tenant.create", name, {}, tenant_id=name)
        tenants.change(session, name, changes)
        audit.record(session, caller.actor, "tenant.set", name, changes, tenant_id=name)
        found = tenants.find(session, name)
    if found is None:
        raise NotFoundError(f"There is no tenant {name}.", param="tenant")
    return to_answer(found)


def may_see(caller: Caller, tenant: str) -> bool:
    """Return whether the caller may administer this tenant: its own, or with `deployment` any."""
    return tenant == caller.tenant_id or Scope.DEPLOYMENT in caller.scopes
