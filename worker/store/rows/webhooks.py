"""Tables of webhook endpoints, events, deliveries, receivers and delivery attempts."""

from datetime import datetime

from sqlalchemy import (
    ForeignKey,
    Index,
    func,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from worker.contract.states import EventState
from worker.store.rows.table import TableRow, created_now, is_in


class WebhookEndpointRow(TableRow):
    """A WebhookEndpoint: a URL that a tenant registers once for many Batches."""

    __tablename__ = "webhook_endpoints"
    __table_args__ = (Index(None, "tenant_id", "created_at", "id"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str | None] = mapped_column(server_default="default")
    url: Mapped[str]
    event_types: Mapped[list[str]] = mapped_column(JSONB)
    description: Mapped[str] = mapped_column(server_default="")
    is_enabled: Mapped[bool] = mapped_column(server_default=true())
    disabled_reason: Mapped[str | None]
    sealed_secret: Mapped[str | None]  # None after deletion, like the next
    old_sealed_secret: Mapped[str | None]
    old_secret_expires_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = created_now()
    deleted_at: Mapped[datetime | None]


class WebhookEventRow(TableRow):
    """An event for receivers: a ping, or the end of a batch.

    An end is written in the transaction that ends the batch or, if its results go to files, in the one that
    completes these files.
    """

    __tablename__ = "webhook_events"
    __table_args__ = (
        Index(None, "batch_id", unique=True),
        Index(None, "tenant_id", "created_at", "id"),
        {"postgresql_with": {"fillfactor": 80, "autovacuum_vacuum_scale_factor": 0.02}},
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str | None] = mapped_column(server_default="default")
    batch_id: Mapped[str | None] = mapped_column(ForeignKey("batches.id", ondelete="CASCADE"))  # None: a ping
    type: Mapped[str]
    url: Mapped[str | None]  # the batch's callback, if any
    body: Mapped[str]  # the exact text that is signed and sent
    attempts: Mapped[int] = mapped_column(server_default="0")  # of all its deliveries
    created_at: Mapped[datetime] = created_now()


class DeliveryRow(TableRow):
    """A WebhookEvent on its way to one receiver."""

    __tablename__ = "deliveries"
    __table_args__ = (
        Index(
            "deliveries_event_id_endpoint_id_key",
            "event_id",
            "endpoint_id",
            unique=True,
            postgresql_nulls_not_distinct=True,
        ),
        Index(
            "deliveries_due_index",
            "receiver",
            "next_attempt_at",
            postgresql_where=is_in("state", {EventState.PENDING}),
        ),
        Index(
            "deliveries_held_index",
            "receiver",
            postgresql_where=text("state = 'sending' OR ticketed_at IS NOT NULL"),
        ),
        Index("deliveries_failed_index", "endpoint_id", postgresql_where=is_in("state", {EventState.FAILED})),
        {"postgresql_with": {"fillfactor": 80, "autovacuum_vacuum_scale_factor": 0.02}},
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    event_id: Mapped[str] = mapped_column(ForeignKey("webhook_events.id", ondelete="CASCADE"))
    endpoint_id: Mapped[str | None] = mapped_column(ForeignKey("webhook_endpoints.id"))  # None: the callback
    receiver: Mapped[str]  # its breaker and cap apply to this delivery
    state: Mapped[EventState]
    attempts: Mapped[int] = mapped_column(server_default="0")  # since its creation or last replay
    next_attempt_at: Mapped[datetime] = mapped_column(server_default=func.now())
    fence: Mapped[int] = mapped_column(server_default="0")
    lease_expires_at: Mapped[datetime | None]
    num_tickets: Mapped[int] = mapped_column(server_default="0")
    ticketed_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = created_now()


class ReceiverRow(TableRow):
    """The state of a webhook receiver's circuit breaker."""

    __tablename__ = "webhook_receivers"

    key: Mapped[str] = mapped_column(primary_key=True)  # an endpoint's id, or a tenant and an origin
    num_failures: Mapped[int] = mapped_column(server_default="0")  # in a row
    paused_until: Mapped[datetime | None]
    used_at: Mapped[datetime] = mapped_column(server_default=func.now())


class DeliveryAttemptRow(TableRow):
    """One attempt to deliver a WebhookEvent."""

    __tablename__ = "delivery_attempts"
    __table_args__ = (Index(None, "delivery_id"),)

    event_id: Mapped[str] = mapped_column(
        ForeignKey("webhook_events.id", ondelete="CASCADE"), primary_key=True
    )
    number: Mapped[int] = mapped_column(primary_key=True)  # among all attempts for the event, from 1
    delivery_id: Mapped[str | None] = mapped_column(ForeignKey("deliveries.id", ondelete="CASCADE"))
    created_at: Mapped[datetime] = created_now()
    duration_ms: Mapped[int]
    status_code: Mapped[int | None]
    error: Mapped[str | None]
