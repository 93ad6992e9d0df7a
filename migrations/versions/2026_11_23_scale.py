"""The wanted number of workers by model, for autoscalers."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0026_scale"
down_revision = "0024_expected"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "wanted_workers",
        sa.Column("model_fingerprint", sa.Text(), nullable=False),
        sa.Column("model_name", sa.Text(), nullable=False),
        sa.Column("wanted", sa.BigInteger(), nullable=False),
        sa.Column("on_demand", sa.BigInteger(), nullable=False),
        sa.Column("spot", sa.BigInteger(), nullable=False),
        sa.Column("num_ready", sa.BigInteger(), nullable=False),
        sa.Column("num_loading", sa.BigInteger(), nullable=False),
        sa.Column("num_requests", sa.BigInteger(), nullable=False),
        sa.Column("num_tokens", sa.BigInteger(), nullable=False),
        sa.Column("work_seconds", sa.Double(), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True)),
        sa.Column("engine", JSONB()),
        sa.Column("cold_start_seconds", sa.Double()),
        sa.Column("short_since", sa.DateTime(timezone=True)),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("model_fingerprint", name="wanted_workers_pkey"),
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_table("wanted_workers")
