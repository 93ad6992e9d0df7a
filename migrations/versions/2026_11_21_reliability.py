"""How many bytes of files a tenant may have; shards that were begun and are nobody's, found at once."""

import sqlalchemy as sa
from alembic import op

revision = "0007_reliability"
down_revision = "0006_operators"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column("tenants", sa.Column("max_file_bytes", sa.BigInteger(), nullable=True))
    op.create_index(
        "shards_begun_index", "shards", ["id"], postgresql_where=sa.text("state IN ('ready') AND fence > 0")
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_index("shards_begun_index", table_name="shards")
    op.drop_column("tenants", "max_file_bytes")
