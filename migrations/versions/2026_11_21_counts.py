"""Ended batches counted as they end."""

import sqlalchemy as sa
from alembic import op

revision = "0005_counts"
down_revision = "0004_savings"
branch_labels = None
depends_on = None

STATUSES = ("pending", "processing", "cancelling", "completed", "failed", "cancelled", "expired")


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    status = sa.Enum(*STATUSES, name="status", native_enum=False, create_constraint=True, length=32)
    op.create_table(
        "batch_counts",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("tenant_id", sa.Text(), server_default="default", nullable=False),
        sa.Column("status", status, nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="batch_counts_pkey"),
        postgresql_with={"autovacuum_vacuum_threshold": 500},
    )
    op.create_index("batch_counts_tenant_id_index", "batch_counts", ["tenant_id"])
    op.execute(
        "INSERT INTO batch_counts (tenant_id, status, count) SELECT tenant_id, status, count(*) FROM batches"
        " WHERE finished_at IS NOT NULL AND lane = 'batch' GROUP BY tenant_id, status"
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_table("batch_counts")
