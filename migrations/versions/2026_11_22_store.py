"""Events without the columns of their delivery, which deliveries have; columns that nobody read are gone.

An event that waited with these columns gets the delivery to its callback that it was written for.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012_store"
down_revision = "0011_estimates"
branch_labels = None
depends_on = None

# Of an event of the first release, which had one receiver: its batch's callback.
OF_DELIVERY = (
    *("state", "next_attempt_at", "fence", "lease_expires_at"),
    *("num_tickets", "ticketed_at", "settled_at"),
)


def upgrade() -> None:
    # A migration that waits for a lock makes everyone behind it wait: give up early and run it again.
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("""
        INSERT INTO deliveries (id, event_id, receiver, state, attempts, next_attempt_at, created_at)
        SELECT 'dlv_' || substr(id, 5), id,
            coalesce(tenant_id, 'default') || ' ' || lower(substring(url from '^[^:]+://[^/?#]*')),
            'pending', attempts, next_attempt_at, created_at
        FROM webhook_events WHERE state IN ('pending', 'sending') AND url IS NOT NULL
        ON CONFLICT DO NOTHING
    """)
    op.execute("""
        INSERT INTO webhook_receivers (key)
        SELECT DISTINCT receiver FROM deliveries WHERE state = 'pending' ON CONFLICT DO NOTHING
    """)
    op.execute("""
        UPDATE delivery_attempts SET delivery_id = deliveries.id FROM deliveries
        WHERE deliveries.event_id = delivery_attempts.event_id AND deliveries.endpoint_id IS NULL
            AND delivery_attempts.delivery_id IS NULL
    """)
    op.drop_index("webhook_events_due_index", table_name="webhook_events")
    op.drop_index("webhook_events_sending_index", table_name="webhook_events")
    for column in OF_DELIVERY:
        op.drop_column("webhook_events", column)
    op.drop_column("deliveries", "settled_at")
    op.drop_column("partial_outputs", "saved_at")
    op.drop_column("uploads", "mime_type")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    # To the release before, no state means that deliveries have the rest.
    op.add_column("webhook_events", sa.Column("state", sa.String(32), nullable=True))
    op.create_check_constraint(
        op.f("webhook_events_state_check"),
        "webhook_events",
        "state IN ('pending', 'sending', 'delivered', 'failed')",
    )
    for name in ("next_attempt_at", "lease_expires_at", "ticketed_at", "settled_at"):
        has_default = name == "next_attempt_at"
        time = sa.Column(
            name,
            sa.DateTime(timezone=True),
            server_default=sa.func.now() if has_default else None,
            nullable=not has_default,
        )
        op.add_column("webhook_events", time)
    for name in ("fence", "num_tickets"):
        op.add_column("webhook_events", sa.Column(name, sa.BigInteger(), server_default="0", nullable=False))
    op.create_index(
        "webhook_events_due_index",
        "webhook_events",
        ["next_attempt_at"],
        postgresql_where=sa.text("state IN ('pending')"),
    )
    op.create_index(
        "webhook_events_sending_index",
        "webhook_events",
        ["lease_expires_at"],
        postgresql_where=sa.text("state IN ('sending')"),
    )
    op.add_column("deliveries", sa.Column("settled_at", sa.DateTime(timezone=True), nullable=True))
    now = sa.Column("saved_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False)
    op.add_column("partial_outputs", now)
    op.add_column("uploads", sa.Column("mime_type", sa.Text(), server_default="", nullable=False))
    op.alter_column("uploads", "mime_type", server_default=None)
