"""Experiments in which the other model runs some requests in place of the batch's own."""

import sqlalchemy as sa
from alembic import op

revision = "0027_split"
down_revision = "0028_reuse"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.alter_column("experiments", "shadow_id", existing_type=sa.Text(), nullable=True)


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    # What the other model has left of them waits for its own model again, as nothing would roll it back.
    op.execute(
        "UPDATE shards SET model_fingerprint = coalesce(batches.model_fingerprint, ''), state = 'ready',"
        " fence = fence + 1, worker = NULL, lease_expires_at = NULL, ticketed_at = NULL"
        " FROM batches JOIN experiments ON experiments.batch_id = batches.id"
        " WHERE shards.batch_id = batches.id AND experiments.shadow_id IS NULL"
        " AND shards.state IN ('ready', 'running')"
        " AND shards.model_fingerprint = experiments.model_fingerprint"
        " AND batches.model_fingerprint IS DISTINCT FROM experiments.model_fingerprint"
    )
    op.execute("DELETE FROM experiments WHERE shadow_id IS NULL")
    op.alter_column("experiments", "shadow_id", existing_type=sa.Text(), nullable=False)
