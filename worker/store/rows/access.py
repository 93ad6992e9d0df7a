"""Tables of access: tenants, their fair shares, API keys and the audit log."""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    ForeignKey,
    Identity,
    Index,
    false,
)
from sqlalchemy.orm import Mapped, mapped_column

from worker.store.rows.table import Owned, TableRow, created_now


class TenantRow(TableRow):
    """A tenant, its weight in fair shares, and its quotas, where None means no limit."""

    __tablename__ = "tenants"

    id: Mapped[str] = mapped_column(primary_key=True)
    weight: Mapped[int] = mapped_column(server_default="1")  # its share of the workers, relative to others'
    max_batches: Mapped[int | None]  # not ended
    max_requests: Mapped[int | None]  # without a result, in batches that have not ended
    max_tokens: Mapped[int | None]  # of those requests: prompts, and outputs at maximum length
    max_bytes: Mapped[int | None]  # stored prompts and outputs
    max_file_bytes: Mapped[int | None]  # stored files, and uploads at their announced size
    calls_per_minute: Mapped[int | None]  # to the API
    may_use_semantic_cache: Mapped[bool] = mapped_column(server_default=false())
    # Its stored requests and outputs may serve to tune the service and to train models.
    allows_reuse: Mapped[bool] = mapped_column(server_default=false())
    created_at: Mapped[datetime] = created_now()


class FairShareRow(TableRow):
    """The virtual finish of a tenant's last placed shard, in tokens divided by the tenant's weight."""

    __tablename__ = "fair_shares"

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    virtual_finish: Mapped[float]


class ApiKeyRow(TableRow):
    """An API key, by its prefix and digest; the key itself is never stored."""

    __tablename__ = "api_keys"
    __table_args__ = (Index(None, "tenant_id"),)

    prefix: Mapped[str] = mapped_column(primary_key=True)  # the public part of the key
    digest: Mapped[str]  # SHA-256 of the whole key, hexadecimal
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"))
    name: Mapped[str]
    scopes: Mapped[list[str]]
    created_at: Mapped[datetime] = created_now()
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]  # to the minute


class AuditRow(Owned, TableRow):
    """An administrative act, with its actor, target and tenant, written in the act's own transaction."""

    __tablename__ = "audit_log"
    __table_args__ = (Index(None, "tenant_id", "id"),)

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    created_at: Mapped[datetime] = created_now()
    actor: Mapped[str]  # the prefix of a key, or the operating system's user on the command line
    act: Mapped[str]
    target: Mapped[str]
    details: Mapped[dict[str, Any]]
