"""Who may use the semantic cache; an index of the batches in which something failed."""

import sqlalchemy as sa
from alembic import op

revision = "0006_operators"
down_revision = "0005_counts"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column(
        "tenants",
        sa.Column("may_use_semantic_cache", sa.Boolean(), server_default=sa.false(), nullable=False),
    )
    op.create_index(
        "batches_failures_index",
        "batches",
        ["finished_at"],
        postgresql_where=sa.text(
            "finished_at IS NOT NULL AND (num_failed > 0 OR status IN ('expired', 'failed'))"
        ),
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_index("batches_failures_index", table_name="batches")
    op.drop_column("tenants", "may_use_semantic_cache")
