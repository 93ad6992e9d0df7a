"""Files whose wrong lines fail alone, and the endpoint of each request of a file."""

import sqlalchemy as sa
from alembic import op

revision = "0018_data"
down_revision = "0015_responses"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column("files", sa.Column("num_wrong_lines", sa.BigInteger()))
    op.add_column("batch_files", sa.Column("read_lines", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("requests", sa.Column("endpoint", sa.Text()))
    op.add_column("requests", sa.Column("metadata", sa.Text()))
    op.add_column(
        "requests", sa.Column("is_wrong_line", sa.Boolean(), server_default=sa.false(), nullable=False)
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("requests", "is_wrong_line")
    op.drop_column("requests", "metadata")
    op.drop_column("requests", "endpoint")
    op.drop_column("batch_files", "read_lines")
    op.drop_column("files", "num_wrong_lines")
