"""Indexes for the orders in which one tenant's shards go."""

import sqlalchemy as sa
from alembic import op

revision = "0008_priority"
down_revision = "0007_reliability"
branch_labels = None
depends_on = None

READY = "state IN ('ready')"
TICKETED = "state IN ('ready') AND ticketed_at IS NOT NULL"
INDEXES = {
    "shards_fewest_index": (["position", "expires_at"], READY),
    "shards_ticketed_due_index": (["expires_at"], TICKETED),
    "shards_ticketed_fewest_index": (["position", "expires_at"], TICKETED),
}


def upgrade() -> None:
    # A migration that waits for a lock makes everyone behind it wait: give up early and run it again.
    op.execute("SET LOCAL lock_timeout = '5s'")
    for name, (columns, condition) in INDEXES.items():
        op.create_index(
            name,
            "shards",
            ["tenant_id", sa.text("priority DESC"), *columns, "id"],
            postgresql_where=sa.text(condition),
        )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for name in INDEXES:
        op.drop_index(name, table_name="shards")
