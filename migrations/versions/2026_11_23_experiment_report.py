"""Experiments: what requests cost, failed, and whether they are in their format; A/B compares no outputs."""

import sqlalchemy as sa
from alembic import op

revision = "0029_experiment_report"
down_revision = "0028_answers"
branch_labels = None
depends_on = None

FLAGS = ("failed_a", "failed_b", "valid_a", "valid_b")
COSTS = ("cost_a", "cost_b")


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column(
        "experiment_lines", sa.Column("is_judged", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    for name in FLAGS:
        op.add_column("experiment_lines", sa.Column(name, sa.Boolean()))
    for name in COSTS:
        op.add_column("experiment_lines", sa.Column(name, sa.BigInteger()))
    op.execute("UPDATE experiment_lines SET is_judged = true WHERE agrees IS NOT NULL")
    op.execute(
        "UPDATE experiment_lines SET agrees = NULL FROM experiments"
        " WHERE experiments.id = experiment_id AND shadow_id IS NULL AND is_judged"
    )
    op.drop_index("experiment_lines_open_index", "experiment_lines")
    op.create_index(
        "experiment_lines_open_index",
        "experiment_lines",
        ["experiment_id"],
        postgresql_where=sa.text("NOT is_judged"),
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("UPDATE experiment_lines SET agrees = false WHERE is_judged AND agrees IS NULL")
    op.drop_index("experiment_lines_open_index", "experiment_lines")
    op.create_index(
        "experiment_lines_open_index",
        "experiment_lines",
        ["experiment_id"],
        postgresql_where=sa.text("agrees IS NULL"),
    )
    for name in (*COSTS, *FLAGS, "is_judged"):
        op.drop_column("experiment_lines", name)
