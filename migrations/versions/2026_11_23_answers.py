"""Stored answers: how old one may be, by batch and request, and whether a semantic hit was right."""

import sqlalchemy as sa
from alembic import op

revision = "0028_answers"
down_revision = "0027_split"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column("batches", sa.Column("cache_ttl_seconds", sa.Double(), nullable=True))
    op.add_column("requests", sa.Column("cache_ttl_seconds", sa.Double(), nullable=True))
    op.add_column("results", sa.Column("hit_is_right", sa.Boolean(), nullable=True))


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("results", "hit_is_right")
    op.drop_column("requests", "cache_ttl_seconds")
    op.drop_column("batches", "cache_ttl_seconds")
