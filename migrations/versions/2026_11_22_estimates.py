"""What a batch was forecast to take, and how many of its outputs their limits have cut."""

import sqlalchemy as sa
from alembic import op

revision = "0011_estimates"
down_revision = "0010_scopes"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column("batches", sa.Column("forecast_seconds", sa.Double()))
    op.add_column("batches", sa.Column("num_cut", sa.BigInteger(), server_default="0", nullable=False))
    op.drop_column("batches", "output_tokens_squared")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column(
        "batches", sa.Column("output_tokens_squared", sa.BigInteger(), server_default="0", nullable=False)
    )
    op.drop_column("batches", "num_cut")
    op.drop_column("batches", "forecast_seconds")
