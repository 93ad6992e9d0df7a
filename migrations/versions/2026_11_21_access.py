"""Tenants, API keys, the audit log; batches and idempotency keys belong to a tenant."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "access"
down_revision = "0001"
branch_labels = None
depends_on = None


def _created_at() -> sa.Column[sa.DateTime]:
    return sa.Column(
        "created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
    )


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "tenants",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("weight", sa.BigInteger(), server_default="1", nullable=False),
        sa.Column("max_batches", sa.BigInteger(), nullable=True),
        sa.Column("max_requests", sa.BigInteger(), nullable=True),
        sa.Column("max_tokens", sa.BigInteger(), nullable=True),
        sa.Column("max_bytes", sa.BigInteger(), nullable=True),
        sa.Column("calls_per_minute", sa.BigInteger(), nullable=True),
        _created_at(),
        sa.PrimaryKeyConstraint("id", name=op.f("tenants_pkey")),
    )
    op.execute("INSERT INTO tenants (id) VALUES ('default')")
    op.create_table(
        "api_keys",
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("scopes", postgresql.ARRAY(sa.Text()), nullable=False),
        _created_at(),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("api_keys_tenant_id_tenants_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("prefix", name=op.f("api_keys_pkey")),
    )
    op.create_index(op.f("api_keys_tenant_id_index"), "api_keys", ["tenant_id"], unique=False)
    op.create_table(
        "audit_log",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        _created_at(),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("act", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("details", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("audit_log_pkey")),
    )
    op.create_table(
        "fair_shares",
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("virtual_finish", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("fair_shares_pkey")),
    )
    for table in ("batches", "shards", "idempotency_keys"):
        op.add_column(table, sa.Column("tenant_id", sa.Text(), server_default="default", nullable=False))
    op.add_column("shards", sa.Column("virtual_start", sa.Float(), nullable=True))
    op.drop_index("shards_ready_index", table_name="shards")
    op.create_index(
        "shards_ready_index",
        "shards",
        ["tenant_id", sa.literal_column("priority DESC"), "id"],
        unique=False,
        postgresql_where=sa.text("state IN ('ready')"),
    )
    op.create_index(
        "shards_ticketed_index",
        "shards",
        ["virtual_start"],
        unique=False,
        postgresql_where=sa.text("state IN ('ready') AND ticketed_at IS NOT NULL"),
    )
    op.add_column("batches", sa.Column("stored_bytes", sa.BigInteger(), server_default="0", nullable=False))
    op.create_index(
        op.f("batches_tenant_id_created_at_id_index"),
        "batches",
        ["tenant_id", "created_at", "id"],
        unique=False,
    )
    op.drop_constraint(op.f("idempotency_keys_pkey"), "idempotency_keys", type_="primary")
    op.create_primary_key(op.f("idempotency_keys_pkey"), "idempotency_keys", ["tenant_id", "key"])


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_index("shards_ticketed_index", table_name="shards")
    op.drop_index("shards_ready_index", table_name="shards")
    op.create_index(
        "shards_ready_index",
        "shards",
        [sa.literal_column("priority DESC"), "id"],
        unique=False,
        postgresql_where=sa.text("state IN ('ready')"),
    )
    op.drop_column("shards", "virtual_start")
    op.drop_table("fair_shares")
    # Of one key in several tenants' hands the schema before this one can keep one.
    op.execute("""
        DELETE FROM idempotency_keys AS other USING idempotency_keys AS kept
        WHERE other.key = kept.key AND other.tenant_id > kept.tenant_id
    """)
    op.drop_constraint(op.f("idempotency_keys_pkey"), "idempotency_keys", type_="primary")
    op.create_primary_key(op.f("idempotency_keys_pkey"), "idempotency_keys", ["key"])
    op.drop_index(op.f("batches_tenant_id_created_at_id_index"), table_name="batches")
    op.drop_column("batches", "stored_bytes")
    for table in ("idempotency_keys", "shards", "batches"):
        op.drop_column(table, "tenant_id")
    op.drop_table("audit_log")
    op.drop_index(op.f("api_keys_tenant_id_index"), table_name="api_keys")
    op.drop_table("api_keys")
    op.drop_table("tenants")
