"""Experiments: batches whose requests run under another model too."""

import sqlalchemy as sa
from alembic import op

revision = "0024_experiments"
down_revision = "0026_scale"
branch_labels = None
depends_on = None

STATUSES = ("running", "ended", "rolled_back", "promoted")
VERDICTS = ("better", "same", "worse", "undecided")


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "experiments",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("shadow_id", sa.Text(), nullable=False),
        sa.Column("base_name", sa.Text()),
        sa.Column("base_fingerprint", sa.Text()),
        sa.Column("model_name", sa.Text(), nullable=False),
        sa.Column("model_fingerprint", sa.Text(), nullable=False),
        sa.Column("status", sa.String(32), server_default="running", nullable=False),
        sa.Column("verdict", sa.String(32), server_default="undecided", nullable=False),
        sa.Column("share", sa.Double(), nullable=False),
        sa.Column("allowed_loss", sa.Double(), nullable=False),
        sa.Column("resolution", sa.Double(), nullable=False),
        sa.Column("num_planned", sa.BigInteger(), nullable=False),
        sa.Column("num_requests", sa.BigInteger(), nullable=False),
        sa.Column("num_expected", sa.BigInteger(), nullable=False),
        sa.Column("num_seen", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True)),
        sa.Column("closed_at", sa.DateTime(timezone=True)),
        sa.Column("tenant_id", sa.Text(), server_default="default", nullable=False),
        sa.CheckConstraint(sa.column("status").in_(STATUSES), name="experiments_status_check"),
        sa.CheckConstraint(sa.column("verdict").in_(VERDICTS), name="experiments_verdict_check"),
        sa.PrimaryKeyConstraint("id", name="experiments_pkey"),
    )
    op.create_index(
        "experiments_tenant_id_created_at_id_index", "experiments", ["tenant_id", "created_at", "id"]
    )
    op.create_index(
        "experiments_open_index", "experiments", ["created_at"], postgresql_where=sa.text("closed_at IS NULL")
    )
    op.create_table(
        "experiment_lines",
        sa.Column(
            "experiment_id",
            sa.Text(),
            sa.ForeignKey(
                "experiments.id", name="experiment_lines_experiment_id_experiments_fkey", ondelete="CASCADE"
            ),
            nullable=False,
        ),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("shadow_position", sa.BigInteger(), nullable=False),
        sa.Column("agrees", sa.Boolean()),
        sa.Column("right_a", sa.Boolean()),
        sa.Column("right_b", sa.Boolean()),
        sa.Column("tokens_a", sa.BigInteger()),
        sa.Column("tokens_b", sa.BigInteger()),
        sa.Column("seconds_a", sa.Double()),
        sa.Column("seconds_b", sa.Double()),
        sa.PrimaryKeyConstraint("experiment_id", "position", name="experiment_lines_pkey"),
    )
    op.create_index(
        "experiment_lines_open_index",
        "experiment_lines",
        ["experiment_id"],
        postgresql_where=sa.text("agrees IS NULL"),
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    # Their shadows must not run on as batches of tenants that nobody has.
    op.execute("DELETE FROM shards WHERE batch_id IN (SELECT shadow_id FROM experiments)")
    op.execute("DELETE FROM batches WHERE id IN (SELECT shadow_id FROM experiments)")
    op.drop_table("experiment_lines")
    op.drop_table("experiments")
