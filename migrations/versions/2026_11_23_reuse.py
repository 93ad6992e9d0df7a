"""Which tenants allow their stored work to be used again."""

import sqlalchemy as sa
from alembic import op

revision = "0028_reuse"
down_revision = "0024_experiments"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column(
        "tenants", sa.Column("allows_reuse", sa.Boolean(), server_default=sa.false(), nullable=False)
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("tenants", "allows_reuse")
