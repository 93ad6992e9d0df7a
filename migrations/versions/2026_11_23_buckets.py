"""Where the input of a batch came from, and where its results go, in buckets of its customer."""

import sqlalchemy as sa
from alembic import op

revision = "0022_buckets"
down_revision = "0019_names"
branch_labels = None
depends_on = None

COLUMNS = ("input_uri", "input_etag", "output_uri", "output_error")


def upgrade() -> None:
    # A migration that waits for a lock makes everyone behind it wait: give up early and run it again.
    op.execute("SET LOCAL lock_timeout = '5s'")
    for name in COLUMNS:
        op.add_column("batch_files", sa.Column(name, sa.Text()))
    op.add_column(
        "batch_files", sa.Column("output_tries", sa.BigInteger(), server_default="0", nullable=False)
    )


def downgrade() -> None:
    # What was not written to a bucket yet is not: the results stay here.
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("batch_files", "output_tries")
    for name in reversed(COLUMNS):
        op.drop_column("batch_files", name)
