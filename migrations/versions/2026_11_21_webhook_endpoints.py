"""Webhook endpoints, a delivery for each receiver of an event, circuit breakers."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "webhook_endpoints"
down_revision = "access"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A migration that waits for a lock makes everyone behind it wait: give up early and run it again.
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), server_default="default", nullable=True),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("event_types", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("description", sa.Text(), server_default="", nullable=False),
        sa.Column("is_enabled", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("disabled_reason", sa.Text(), nullable=True),
        sa.Column("sealed_secret", sa.Text(), nullable=True),
        sa.Column("old_sealed_secret", sa.Text(), nullable=True),
        sa.Column("old_secret_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("webhook_endpoints_pkey")),
    )
    op.create_index(
        op.f("webhook_endpoints_tenant_id_created_at_id_index"),
        "webhook_endpoints",
        ["tenant_id", "created_at", "id"],
    )
    op.create_table(
        "webhook_receivers",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("num_failures", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("paused_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("used_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("webhook_receivers_pkey")),
    )
    op.create_table(
        "deliveries",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("endpoint_id", sa.Text(), nullable=True),
        sa.Column("receiver", sa.Text(), nullable=False),
        sa.Column(
            "state",
            sa.Enum(
                "pending",
                "sending",
                "delivered",
                "failed",
                name="state",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("attempts", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column(
            "next_attempt_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("fence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("num_tickets", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("ticketed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("settled_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["event_id"],
            ["webhook_events.id"],
            name=op.f("deliveries_event_id_webhook_events_fkey"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["endpoint_id"],
            ["webhook_endpoints.id"],
            name=op.f("deliveries_endpoint_id_webhook_endpoints_fkey"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("deliveries_pkey")),
    )
    op.create_index(
        "deliveries_event_id_endpoint_id_key",
        "deliveries",
        ["event_id", "endpoint_id"],
        unique=True,
        postgresql_nulls_not_distinct=True,
    )
    op.create_index(
        "deliveries_due_index",
        "deliveries",
        ["receiver", "next_attempt_at"],
        postgresql_where=sa.text("state IN ('pending')"),
    )
    op.create_index(
        "deliveries_held_index",
        "deliveries",
        ["receiver"],
        postgresql_where=sa.text("state = 'sending' OR ticketed_at IS NOT NULL"),
    )
    op.create_index(
        "deliveries_failed_index",
        "deliveries",
        ["endpoint_id"],
        postgresql_where=sa.text("state IN ('failed')"),
    )
    op.add_column("delivery_attempts", sa.Column("delivery_id", sa.Text(), nullable=True))
    op.create_foreign_key(
        op.f("delivery_attempts_delivery_id_deliveries_fkey"),
        "delivery_attempts",
        "deliveries",
        ["delivery_id"],
        ["id"],
        ondelete="CASCADE",
    )
    op.create_index(op.f("delivery_attempts_delivery_id_index"), "delivery_attempts", ["delivery_id"])
    op.add_column(
        "webhook_events", sa.Column("tenant_id", sa.Text(), server_default="default", nullable=True)
    )
    op.create_index(
        op.f("webhook_events_tenant_id_created_at_id_index"),
        "webhook_events",
        ["tenant_id", "created_at", "id"],
    )
    for column in ("batch_id", "url", "state"):
        op.alter_column("webhook_events", column, nullable=True)
    # What is over moves here; the dispatcher adopts what is not, and what old processes still write.
    op.execute(
        "INSERT INTO deliveries"
        " (id, event_id, receiver, state, attempts, next_attempt_at, fence, created_at, settled_at)"
        " SELECT 'dlv_' || substr(id, 5), id,"
        " 'default ' || lower(substring(url from '^[^:]+://[^/?#]*')),"
        " state, attempts, next_attempt_at, fence, created_at, settled_at"
        " FROM webhook_events WHERE state IN ('delivered', 'failed')"
    )
    op.execute(
        "UPDATE delivery_attempts SET delivery_id = deliveries.id"
        " FROM deliveries WHERE deliveries.event_id = delivery_attempts.event_id"
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    # The release before knows one receiver an event: the batch's own callback.
    op.execute("DELETE FROM webhook_events WHERE batch_id IS NULL OR url IS NULL")
    op.execute(
        "UPDATE webhook_events SET attempts = deliveries.attempts,"
        " next_attempt_at = deliveries.next_attempt_at, settled_at = deliveries.settled_at,"
        " state = CASE deliveries.state WHEN 'sending' THEN 'pending' ELSE deliveries.state END"
        " FROM deliveries WHERE deliveries.event_id = webhook_events.id AND deliveries.endpoint_id IS NULL"
    )
    op.execute(
        "DELETE FROM delivery_attempts USING deliveries"
        " WHERE deliveries.id = delivery_attempts.delivery_id AND deliveries.endpoint_id IS NOT NULL"
    )
    # An attempt's number was among those of its one delivery.
    op.execute(
        "UPDATE webhook_events SET attempts = greatest(attempts, last.number) FROM"
        " (SELECT event_id, max(number) AS number FROM delivery_attempts GROUP BY event_id) AS last"
        " WHERE last.event_id = webhook_events.id"
    )
    for column in ("batch_id", "url", "state"):
        op.alter_column("webhook_events", column, nullable=False)
    op.drop_index(op.f("webhook_events_tenant_id_created_at_id_index"), table_name="webhook_events")
    op.drop_column("webhook_events", "tenant_id")
    op.drop_index(op.f("delivery_attempts_delivery_id_index"), table_name="delivery_attempts")
    op.drop_column("delivery_attempts", "delivery_id")
    op.drop_table("deliveries")
    op.drop_table("webhook_receivers")
    op.drop_table("webhook_endpoints")
