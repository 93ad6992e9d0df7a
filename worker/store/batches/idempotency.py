"""Idempotency keys: two submissions of a tenant with one key are one batch."""

from datetime import timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from worker.store.database.session import tenant_of
from worker.store.rows.batches import IdempotencyKeyRow

KEPT_FOR = timedelta(hours=48)


class FingerprintMismatchError(Exception):
    """The key was used before, for another body."""


def find(session: Session, key: str, fingerprint: str) -> str | None:
    """Return the batch an earlier submission with this key made, or None.

    Holds the key until the transaction ends, so of two submissions at once the second waits for the first.

    Raises:
        FingerprintMismatchError: the earlier submission had another body.

    """
    tenant_id = tenant_of(session)
    session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"{tenant_id} {key}", 0))))
    row = session.get(IdempotencyKeyRow, (tenant_id, key))
    if row is None:
        return None
    if row.fingerprint != fingerprint:
        raise FingerprintMismatchError(key)
    return row.batch_id


def remember(session: Session, key: str, fingerprint: str, batch_id: str) -> None:
    """Tie a key to the batch its submission made."""
    session.add(
        IdempotencyKeyRow(tenant_id=tenant_of(session), key=key, fingerprint=fingerprint, batch_id=batch_id)
    )


def forget_the_old(session: Session) -> None:
    """Drop keys nobody will use again."""
    session.execute(delete(IdempotencyKeyRow).where(IdempotencyKeyRow.created_at < func.now() - KEPT_FOR))
