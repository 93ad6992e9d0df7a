"""What the output of a request is expected to be."""

import sqlalchemy as sa
from alembic import op

revision = "0024_expected"
down_revision = "0017_tools"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column("requests", sa.Column("expected", sa.Text()))


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("requests", "expected")
