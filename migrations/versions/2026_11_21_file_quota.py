"""How many bytes of files a tenant may have."""

import sqlalchemy as sa
from alembic import op

revision = "0005_file_quota"
down_revision = "0004_savings"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tenants", sa.Column("max_file_bytes", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("tenants", "max_file_bytes")
