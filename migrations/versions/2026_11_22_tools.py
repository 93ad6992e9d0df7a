"""Tool loops of requests, and their recorded turns."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0017_tools"
down_revision = "0020_fleet"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column("requests", sa.Column("tool_loop", sa.Text()))
    op.create_table(
        "tool_turns",
        sa.Column(
            "request_id",
            sa.BigInteger(),
            sa.ForeignKey("requests.id", name="tool_turns_request_id_requests_fkey", ondelete="CASCADE"),
            nullable=False,
        ),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("said", JSONB(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("request_id", "number", name="tool_turns_pkey"),
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_table("tool_turns")
    op.drop_column("requests", "tool_loop")
