"""The tokens of reasoning in a batch's usage."""

import sqlalchemy as sa
from alembic import op

revision = "0023_reasoning"
down_revision = "0022_buckets"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    counted = sa.Column("reasoning_tokens", sa.BigInteger(), server_default="0", nullable=False)
    op.add_column("batches", counted)


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("batches", "reasoning_tokens")
