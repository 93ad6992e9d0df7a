"""Pause, stop rules, retries, deadlines by shard, suspects, partial outputs, attempts, measured rates."""

import sqlalchemy as sa
from alembic import op

revision = "0002_control"
down_revision = "webhook_endpoints"
branch_labels = None
depends_on = None

IS_READY = sa.text("state IN ('ready')")


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for column in (
        sa.Column("paused_at", sa.DateTime(timezone=True)),
        sa.Column("max_failed", sa.BigInteger()),
        sa.Column("max_total_tokens", sa.BigInteger()),
        sa.Column("error_code", sa.Text()),
        sa.Column("error_message", sa.Text()),
        sa.Column("retry_of", sa.Text()),
        sa.Column("has_cancelled_requests", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("output_tokens_squared", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("completed_output_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("tokens_per_second", sa.Float(53)),
        sa.Column("measured_tokens", sa.BigInteger()),
        sa.Column("measured_at", sa.DateTime(timezone=True)),
    ):
        op.add_column("batches", column)
    op.create_foreign_key(
        op.f("batches_retry_of_batches_fkey"), "batches", "batches", ["retry_of"], ["id"], ondelete="SET NULL"
    )
    op.create_index(
        op.f("batches_retry_of_index"),
        "batches",
        ["retry_of"],
        postgresql_where=sa.text("retry_of IS NOT NULL"),
    )
    op.add_column("shards", sa.Column("expires_at", sa.DateTime(timezone=True)))
    op.add_column("shards", sa.Column("is_suspect", sa.Boolean(), server_default=sa.false(), nullable=False))
    op.execute(
        "UPDATE shards SET expires_at = batches.expires_at FROM batches"
        " WHERE batches.id = batch_id AND batches.expires_at IS NOT NULL"
        " AND shards.state IN ('ready', 'running')"
    )
    op.create_index(
        "shards_due_index",
        "shards",
        ["tenant_id", sa.literal_column("priority DESC"), "expires_at", "id"],
        postgresql_where=IS_READY,
    )
    op.drop_index("shards_ready_index", table_name="shards", postgresql_where=IS_READY)
    op.add_column("requests", sa.Column("cancelled_at", sa.DateTime(timezone=True)))
    op.create_table(
        "partial_outputs",
        sa.Column("request_id", sa.BigInteger(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("token_ids", sa.ARRAY(sa.Integer()), nullable=False),
        sa.Column("output", sa.Text(), nullable=False),
        sa.Column("saved_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["request_id"],
            ["requests.id"],
            name=op.f("partial_outputs_request_id_requests_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("request_id", name=op.f("partial_outputs_pkey")),
    )
    op.create_table(
        "request_attempts",
        sa.Column("request_id", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=True),
        sa.Column(
            "cause",
            sa.Enum(
                "worker_lost",
                "handed_back",
                "paused",
                name="cause",
                native_enum=False,
                create_constraint=True,
                length=32,
            ),
            nullable=False,
        ),
        sa.Column("ended_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["request_id"],
            ["requests.id"],
            name=op.f("request_attempts_request_id_requests_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("request_id", "number", name=op.f("request_attempts_pkey")),
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_table("request_attempts")
    op.drop_table("partial_outputs")
    op.drop_column("requests", "cancelled_at")
    op.create_index(
        "shards_ready_index",
        "shards",
        ["tenant_id", sa.literal_column("priority DESC"), "id"],
        postgresql_where=IS_READY,
    )
    op.drop_index("shards_due_index", table_name="shards", postgresql_where=IS_READY)
    op.drop_column("shards", "is_suspect")
    op.drop_column("shards", "expires_at")
    op.drop_index(
        op.f("batches_retry_of_index"),
        table_name="batches",
        postgresql_where=sa.text("retry_of IS NOT NULL"),
    )
    op.drop_constraint(op.f("batches_retry_of_batches_fkey"), "batches", type_="foreignkey")
    for column in (
        "measured_at",
        "measured_tokens",
        "tokens_per_second",
        "completed_output_tokens",
        "output_tokens_squared",
        "has_cancelled_requests",
        "retry_of",
        "error_message",
        "error_code",
        "max_total_tokens",
        "max_failed",
        "paused_at",
    ):
        op.drop_column("batches", column)
