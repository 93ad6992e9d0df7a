"""When requests time out, and when the engine first ran them."""

import sqlalchemy as sa
from alembic import op

revision = "0013_times"
down_revision = "0012_store"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column("requests", sa.Column("timeout_seconds", sa.Double()))
    op.add_column("shards", sa.Column("timeout_at", sa.DateTime(timezone=True)))
    op.create_index(
        "shards_timeout_index",
        "shards",
        ["timeout_at"],
        postgresql_where=sa.text("state IN ('ready') AND timeout_at IS NOT NULL"),
    )
    op.add_column("partial_outputs", sa.Column("started_at", sa.DateTime(timezone=True)))
    op.add_column("results", sa.Column("started_at", sa.DateTime(timezone=True)))


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("results", "started_at")
    op.drop_column("partial_outputs", "started_at")
    op.drop_index("shards_timeout_index", "shards")
    op.drop_column("shards", "timeout_at")
    op.drop_column("requests", "timeout_seconds")
