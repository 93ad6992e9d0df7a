"""Batches, shards, requests, results; webhook events; idempotency keys; workers."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A migration that waits for a lock makes everyone behind it wait: give up early and run it again.
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "batches",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column(
            "status",
            sa.Enum(
                "pending",
                "processing",
                "cancelling",
                "completed",
                "failed",
                "cancelled",
                "expired",
                name="status",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("params", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("metadata", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("priority", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("callback_url", sa.Text(), nullable=True),
        sa.Column("num_requests", sa.BigInteger(), nullable=False),
        sa.Column("num_completed", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("num_failed", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("num_cancelled", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("num_prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("max_output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("settled_max_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancelled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "num_completed + num_failed + num_cancelled <= num_requests", name=op.f("batches_counts_check")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("batches_pkey")),
    )
    op.create_index(op.f("batches_created_at_id_index"), "batches", ["created_at", "id"], unique=False)
    op.create_index(
        "batches_live_index",
        "batches",
        ["expires_at"],
        unique=False,
        postgresql_where=sa.text("status IN ('cancelling', 'pending', 'processing')"),
    )
    op.create_table(
        "workers",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("slots", sa.BigInteger(), nullable=False),
        sa.Column("info", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("workers_pkey")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["batch_id"],
            ["batches.id"],
            name=op.f("idempotency_keys_batch_id_batches_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("key", name=op.f("idempotency_keys_pkey")),
    )
    op.create_index(
        op.f("idempotency_keys_created_at_index"), "idempotency_keys", ["created_at"], unique=False
    )
    op.create_table(
        "shards",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column(
            "state",
            sa.Enum(
                "ready",
                "running",
                "finished",
                "dropped",
                name="state",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("priority", sa.BigInteger(), nullable=False),
        sa.Column("num_requests", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("attempts", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("running_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("num_tickets", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("ticketed_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name=op.f("shards_batch_id_batches_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("shards_pkey")),
        postgresql_with={"fillfactor": 70, "autovacuum_vacuum_scale_factor": 0.02},
    )
    op.create_index(op.f("shards_batch_id_index"), "shards", ["batch_id"], unique=False)
    op.create_index(
        "shards_ready_index",
        "shards",
        [sa.literal_column("priority DESC"), "id"],
        unique=False,
        postgresql_where=sa.text("state IN ('ready')"),
    )
    op.create_index(
        "shards_running_index",
        "shards",
        ["lease_expires_at"],
        unique=False,
        postgresql_where=sa.text("state IN ('running')"),
    )
    op.create_table(
        "webhook_events",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
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
            ["batch_id"],
            ["batches.id"],
            name=op.f("webhook_events_batch_id_batches_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("webhook_events_pkey")),
    )
    op.create_index(op.f("webhook_events_batch_id_index"), "webhook_events", ["batch_id"], unique=True)
    op.create_index(
        "webhook_events_due_index",
        "webhook_events",
        ["next_attempt_at"],
        unique=False,
        postgresql_where=sa.text("state IN ('pending')"),
    )
    op.create_index(
        "webhook_events_sending_index",
        "webhook_events",
        ["lease_expires_at"],
        unique=False,
        postgresql_where=sa.text("state IN ('sending')"),
    )
    op.create_table(
        "delivery_attempts",
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("duration_ms", sa.BigInteger(), nullable=False),
        sa.Column("status_code", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["event_id"],
            ["webhook_events.id"],
            name=op.f("delivery_attempts_event_id_webhook_events_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("event_id", "number", name=op.f("delivery_attempts_pkey")),
    )
    op.create_table(
        "requests",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("shard_id", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("custom_id", sa.Text(), nullable=True),
        sa.Column("prompt", sa.Text(), nullable=False),
        sa.Column("add_special_tokens", sa.Boolean(), nullable=False),
        sa.Column("params", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("max_tokens", sa.BigInteger(), nullable=False),
        sa.Column("num_prompt_tokens", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["shard_id"], ["shards.id"], name=op.f("requests_shard_id_shards_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("requests_pkey")),
    )
    op.create_index(
        op.f("requests_batch_id_position_index"), "requests", ["batch_id", "position"], unique=True
    )
    op.create_index(
        "requests_custom_id_key",
        "requests",
        ["batch_id", "custom_id"],
        unique=True,
        postgresql_where=sa.text("custom_id IS NOT NULL"),
    )
    op.create_index(op.f("requests_shard_id_index"), "requests", ["shard_id"], unique=False)
    op.create_table(
        "results",
        sa.Column("request_id", sa.BigInteger(), nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column(
            "outcome",
            sa.Enum(
                "completed",
                "failed",
                "cancelled",
                name="outcome",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("output", sa.Text(), nullable=True),
        sa.Column("finish_reason", sa.Text(), nullable=True),
        sa.Column("num_prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("num_cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("num_output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["request_id"], ["requests.id"], name=op.f("results_request_id_requests_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("request_id", name=op.f("results_pkey")),
    )
    op.create_index(op.f("results_batch_id_sequence_index"), "results", ["batch_id", "sequence"], unique=True)


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_index(op.f("results_batch_id_sequence_index"), table_name="results")
    op.drop_table("results")
    op.drop_index(op.f("requests_shard_id_index"), table_name="requests")
    op.drop_index(
        "requests_custom_id_key", table_name="requests", postgresql_where=sa.text("custom_id IS NOT NULL")
    )
    op.drop_index(op.f("requests_batch_id_position_index"), table_name="requests")
    op.drop_table("requests")
    op.drop_table("delivery_attempts")
    op.drop_index(
        "webhook_events_sending_index",
        table_name="webhook_events",
        postgresql_where=sa.text("state IN ('sending')"),
    )
    op.drop_index(
        "webhook_events_due_index",
        table_name="webhook_events",
        postgresql_where=sa.text("state IN ('pending')"),
    )
    op.drop_index(op.f("webhook_events_batch_id_index"), table_name="webhook_events")
    op.drop_table("webhook_events")
    op.drop_index(
        "shards_running_index", table_name="shards", postgresql_where=sa.text("state IN ('running')")
    )
    op.drop_index("shards_ready_index", table_name="shards", postgresql_where=sa.text("state IN ('ready')"))
    op.drop_index(op.f("shards_batch_id_index"), table_name="shards")
    op.drop_table("shards")
    op.drop_index(op.f("idempotency_keys_created_at_index"), table_name="idempotency_keys")
    op.drop_table("idempotency_keys")
    op.drop_table("workers")
    op.drop_index(
        "batches_live_index",
        table_name="batches",
        postgresql_where=sa.text("status IN ('cancelling', 'pending', 'processing')"),
    )
    op.drop_index(op.f("batches_created_at_id_index"), table_name="batches")
    op.drop_table("batches")
