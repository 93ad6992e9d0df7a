"""Keeps idempotency keys, so that a tenant's submissions with one key make one batch."""

from datetime import timedelta

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from worker.store.database.session import tenant_of
from worker.store.rows.batches import IdempotencyKeyRow

KEPT_FOR = timedelta(hours=48)


class FingerprintMismatchError(Exception):
    """An earlier submission used the key with another body."""


def find(session: Session, key: str, fingerprint: str, *, within: timedelta | None = None) -> str | None:
    """Return the id of the batch that an earlier submission with this key made, or None.

    With `within`, one that was longer ago does not count.

    The key is locked until the transaction ends, so of two concurrent submissions the second waits.

    Raises:
        FingerprintMismatchError: the earlier submission had another body.

    """
    tenant_id = tenant_of(session)
    session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"{tenant_id} {key}", 0))))
    row = session.get(IdempotencyKeyRow, (tenant_id, key))
    if row is None:
        return None
    if within is not None and session.scalar(select(row.created_at < func.now() - within)):
        return None
    if row.fingerprint != fingerprint:
        raise FingerprintMismatchError(key)
    return row.batch_id


def remember(session: Session, key: str, fingerprint: str, batch_id: str) -> None:
    """Store the batch that a submission with this key made, in place of an earlier one's."""
    made = {"fingerprint": fingerprint, "batch_id": batch_id}
    new = insert(IdempotencyKeyRow).values(tenant_id=tenant_of(session), key=key, **made)
    session.execute(
        new.on_conflict_do_update(
            index_elements=["tenant_id", "key"], set_={**made, "created_at": func.now()}
        )
    )


def forget_the_old(session: Session) -> None:
    """Delete keys older than `KEPT_FOR`."""
    session.execute(delete(IdempotencyKeyRow).where(IdempotencyKeyRow.created_at < func.now() - KEPT_FOR))
