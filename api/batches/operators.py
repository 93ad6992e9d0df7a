"""Logs what operators do to the batches of other tenants."""

from sqlalchemy.orm import Session

from api.dependencies import Services
from worker.store.database.session import tenant_of
from worker.store.tenants import audit


def note(services: Services, session: Session, act: str, batch_id: str) -> None:
    """Log an operator's act on another tenant's batch, in the act's transaction; no other's act."""
    if services.operator is not None:
        audit.record(session, services.operator, act, batch_id, {}, tenant_id=tenant_of(session))
