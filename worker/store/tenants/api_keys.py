"""Create, recognize, rotate and revoke API keys. A key is shown once; only its SHA-256 is stored.

A key is `hr_<12 hexadecimal digits>_<43 characters>`. The part before the second underscore is its prefix,
which names it and is not secret. The rest is 256 random bits: nobody can guess it, so a fast hash is enough.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, func, or_, select, update
from sqlalchemy.orm import Session

from worker.contract.access import Scope
from worker.store.rows.access import ApiKeyRow, TenantRow
from worker.store.rows.views import view_of

LABEL = "hr"
MAX_LENGTH = 100  # longer than any key: such text is not hashed
# `last_used_at` is written when it is older than this, not at every call.
LAST_USED_PRECISION = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Record of a key, without its secret part."""

    prefix: str
    tenant_id: str
    name: str
    scopes: frozenset[Scope]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    calls_per_minute: int | None  # its tenant's limit


def create(
    session: Session,
    tenant_id: str,
    *,
    name: str,
    scopes: Iterable[Scope],
    expires_in: timedelta | None = None,
) -> str:
    """Create a key for an existing tenant and return it: the only time that it is shown whole."""
    prefix = f"{LABEL}_{secrets.token_hex(6)}"
    key = f"{prefix}_{secrets.token_urlsafe(32)}"
    session.add(
        ApiKeyRow(
            prefix=prefix,
            digest=_digest(key),
            tenant_id=tenant_id,
            name=name,
            scopes=sorted(set(scopes)),
            expires_at=None if expires_in is None else func.now() + expires_in,
        )
    )
    session.flush()
    return key


def recognize(session: Session, key: str) -> ApiKey | None:
    """Return the record of a key that is valid now, and note its use; None: it is not valid."""
    if len(key) > MAX_LENGTH:
        return None
    must_note = or_(
        ApiKeyRow.last_used_at.is_(None), ApiKeyRow.last_used_at < func.now() - LAST_USED_PRECISION
    )
    found = session.execute(
        select(ApiKeyRow, TenantRow.calls_per_minute, must_note)
        .join(TenantRow, TenantRow.id == ApiKeyRow.tenant_id)
        .where(ApiKeyRow.prefix == prefix_of(key), _is_good())
    ).one_or_none()
    if found is None:
        return None
    row, calls_per_minute, is_stale = found
    if not hmac.compare_digest(row.digest, _digest(key)):
        return None
    if is_stale:
        session.execute(
            update(ApiKeyRow).where(ApiKeyRow.prefix == row.prefix).values(last_used_at=func.now())
        )
    return _to_key(row, calls_per_minute)


def revoke(session: Session, prefix: str) -> bool:
    """Revoke a key; return False if there is no such key, or it was revoked before."""
    statement = update(ApiKeyRow).where(ApiKeyRow.prefix == prefix, ApiKeyRow.revoked_at.is_(None))
    revoked = statement.values(revoked_at=func.now()).returning(ApiKeyRow.prefix)
    return session.scalar(revoked) is not None


def rotate(session: Session, prefix: str, *, old_works_for: timedelta) -> str | None:
    """Replace a valid key, which goes on working for a while; return the new key; None: it is not valid.

    The new key has the old one's name, scopes and length of life.
    """
    old = session.scalar(select(ApiKeyRow).where(ApiKeyRow.prefix == prefix, _is_good()).with_for_update())
    if old is None:
        return None
    lifetime = None if old.expires_at is None else old.expires_at - old.created_at
    scopes = map(Scope, old.scopes)
    key = create(session, old.tenant_id, name=old.name, scopes=scopes, expires_in=lifetime)
    # Postgres's `least` ignores a missing expiry.
    old.expires_at = func.least(old.expires_at, func.now() + old_works_for)
    session.flush()
    return key


def find(session: Session, prefix: str) -> ApiKey | None:
    """Return a key's record, valid or not; None: there is none."""
    row = session.get(ApiKeyRow, prefix)
    return None if row is None else _to_key(row, None)


def every(session: Session, tenant_id: str | None = None) -> list[ApiKey]:
    """Return all keys, or a tenant's, the oldest first."""
    statement = select(ApiKeyRow).order_by(ApiKeyRow.created_at, ApiKeyRow.prefix)
    if tenant_id is not None:
        statement = statement.where(ApiKeyRow.tenant_id == tenant_id)
    return [_to_key(row, None) for row in session.scalars(statement)]


def prefix_of(key: str) -> str:
    """Return the part of a key that is not secret."""
    return "_".join(key.split("_")[:2])


def _is_good() -> ColumnElement[bool]:
    never_expires = ApiKeyRow.expires_at.is_(None)
    return ApiKeyRow.revoked_at.is_(None) & or_(never_expires, ApiKeyRow.expires_at > func.now())


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _to_key(row: ApiKeyRow, calls_per_minute: int | None) -> ApiKey:
    scopes = frozenset(map(Scope, row.scopes))
    return view_of(ApiKey, row, scopes=scopes, calls_per_minute=calls_per_minute)
