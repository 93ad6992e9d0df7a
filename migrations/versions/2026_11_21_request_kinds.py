"""Kinds of request, several prompts and choices in one, interactive work in a lane of its own."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002_request_kinds"
down_revision = "0002_control"
branch_labels = None
depends_on = None


def _one_of(name: str, *values: str) -> sa.Enum:
    return sa.Enum(*values, name=name, native_enum=False, create_constraint=True, length=32)


def _lane() -> sa.Column[str]:
    return sa.Column("lane", _one_of("lane", "batch", "interactive"), server_default="batch", nullable=False)


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column("batches", _lane())
    op.add_column("shards", _lane())
    op.create_index(
        "shards_interactive_index",
        "shards",
        ["id"],
        postgresql_where=sa.text("state IN ('ready') AND lane IN ('interactive')"),
    )
    op.add_column(
        "requests",
        sa.Column(
            "kind",
            _one_of("kind", "generation", "embedding", "scoring"),
            server_default="generation",
            nullable=False,
        ),
    )
    op.add_column("requests", sa.Column("inputs", postgresql.JSONB(astext_type=sa.Text()), nullable=True))
    op.add_column(
        "requests", sa.Column("is_streamed", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )
    op.add_column("results", sa.Column("payload", postgresql.JSONB(astext_type=sa.Text()), nullable=True))


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("results", "payload")
    op.drop_column("requests", "is_streamed")
    op.drop_column("requests", "inputs")
    op.drop_column("requests", "kind")
    op.drop_index(
        "shards_interactive_index",
        table_name="shards",
        postgresql_where=sa.text("state IN ('ready') AND lane IN ('interactive')"),
    )
    op.drop_column("shards", "lane")
    op.drop_column("batches", "lane")
