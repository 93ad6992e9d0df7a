"""Backups: the claim of a shard of which an idle worker runs the last requests too."""

import sqlalchemy as sa
from alembic import op

revision = "0030_backups"
down_revision = "0029_experiment_report"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column("shards", sa.Column("backed_up_fence", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("shards", "backed_up_fence")
