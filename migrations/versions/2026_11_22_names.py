"""Names of batches, the search by them and by metadata, and batches that start later."""

import sqlalchemy as sa
from alembic import op

revision = "0019_names"
down_revision = "0018_data"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A migration that waits for a lock makes everyone behind it wait: give up early and run it again.
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column("batches", sa.Column("name", sa.Text()))
    op.add_column("batches", sa.Column("start_after", sa.DateTime(timezone=True)))
    op.create_index(
        "batches_name_index",
        "batches",
        ["tenant_id", "name", "created_at", "id"],
        postgresql_where=sa.text("name IS NOT NULL"),
    )
    op.create_index(
        "batches_metadata_index",
        "batches",
        ["metadata"],
        postgresql_using="gin",
        postgresql_ops={"metadata": "jsonb_path_ops"},
    )
    op.create_index(
        "batches_scheduled_index",
        "batches",
        ["start_after"],
        postgresql_where=sa.text(
            "start_after IS NOT NULL AND paused_at IS NOT NULL AND status IN ('pending')"
        ),
    )


def downgrade() -> None:
    # What was to start later stays paused, until its customer resumes it.
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_index("batches_scheduled_index", "batches")
    op.drop_index("batches_metadata_index", "batches")
    op.drop_index("batches_name_index", "batches")
    op.drop_column("batches", "start_after")
    op.drop_column("batches", "name")
