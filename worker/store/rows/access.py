"""Who may do what: tenants, their share of the work, API keys, the audit log."""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    ForeignKey,
    Identity,
    Index,
    false,
)
from sqlalchemy.orm import Mapped, mapped_column

from worker.store.rows.table import Owned, Table, created_now


class TenantRow(Table):
    """Whose work it is, and how much of it is allowed. No limit: None."""

    __tablename__ = "tenants"

    id: Mapped[str] = mapped_column(primary_key=True)
    weight: Mapped[int] = mapped_column(server_default="1")  # its share of the workers beside the others'
    max_batches: Mapped[int | None]  # not ended
    max_requests: Mapped[int | None]  # without a result, in batches that have not ended
    max_tokens: Mapped[int | None]  # of those requests: prompts, and outputs at their longest
    max_bytes: Mapped[int | None]  # prompts and outputs kept
    max_file_bytes: Mapped[int | None]  # files kept, and uploads as announced
    calls_per_minute: Mapped[int | None]  # of the API
    may_use_semantic_cache: Mapped[bool] = mapped_column(server_default=false())
    created_at: Mapped[datetime] = created_now()


class FairShareRow(Table):
    """How much of the workers a tenant has been given, in tokens over its weight."""

    __tablename__ = "fair_shares"

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    virtual_finish: Mapped[float]


class ApiKeyRow(Table):
    """A key to the API: what is needed to recognize it, and never the key itself."""

    __tablename__ = "api_keys"
    __table_args__ = (Index(None, "tenant_id"),)

    prefix: Mapped[str] = mapped_column(primary_key=True)  # the part of the key that may be seen
    digest: Mapped[str]  # SHA-256 of the whole key, hexadecimal
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    name: Mapped[str]
    scopes: Mapped[list[str]]
    created_at: Mapped[datetime] = created_now()
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]  # to the minute


class AuditRow(Owned, Table):
    """An administrative act: who did what to what of which tenant, written in the transaction that did it."""

    __tablename__ = "audit_log"
    __table_args__ = (Index(None, "tenant_id", "id"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    created_at: Mapped[datetime] = created_now()
    actor: Mapped[str]  # the prefix of a key, or the operating system's user on the command line
    act: Mapped[str]
    target: Mapped[str]
    details: Mapped[dict[str, Any]]
