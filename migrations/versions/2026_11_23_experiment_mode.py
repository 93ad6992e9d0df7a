"""Experiments name their mode, as one on a batch from a file has no shadow until the file has been read."""

import sqlalchemy as sa
from alembic import op

revision = "0031_experiment_mode"
down_revision = "0030_backups"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    column = sa.Column("mode", sa.String(32), server_default="shadow", nullable=False)
    op.add_column("experiments", column)
    op.execute("UPDATE experiments SET mode = 'ab' WHERE shadow_id IS NULL")
    op.create_check_constraint("mode", "experiments", "mode IN ('shadow', 'ab')")
    op.create_index("experiments_batch_id_index", "experiments", ["batch_id"])


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    # Those that have not begun would be taken for the other mode.
    op.execute("DELETE FROM experiments WHERE mode = 'shadow' AND shadow_id IS NULL")
    op.drop_index("experiments_batch_id_index", "experiments")
    op.drop_constraint("mode", "experiments", type_="check")
    op.drop_column("experiments", "mode")
