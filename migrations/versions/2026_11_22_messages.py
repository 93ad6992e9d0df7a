"""The route whose bodies the requests of a batch have."""

import sqlalchemy as sa
from alembic import op

revision = "0016_messages"
down_revision = "0014_costs"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A migration that waits for a lock makes everyone behind it wait: give up early and run it again.
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column("batches", sa.Column("endpoint", sa.Text()))
    op.create_index(
        "batches_endpoint_index",
        "batches",
        ["tenant_id", "endpoint", "created_at", "id"],
        postgresql_where=sa.text("endpoint IS NOT NULL"),
    )


def downgrade() -> None:
    # The batches stay, as batches of the plain API.
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_index("batches_endpoint_index", "batches")
    op.drop_column("batches", "endpoint")
