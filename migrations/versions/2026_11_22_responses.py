"""Responses: what each was asked for, beside the batch of one that runs it."""

import sqlalchemy as sa
from alembic import op

revision = "0015_responses"
down_revision = "0016_messages"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # A migration that waits for a lock makes everyone behind it wait: give up early and run it again.
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "responses",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("is_stored", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("items", sa.JSON(), nullable=False),
        sa.Column("tenant_id", sa.Text(), server_default="default", nullable=False),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name=op.f("responses_batch_id_batches_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("batch_id", name=op.f("responses_pkey")),
    )
    op.create_index(
        "responses_unstored_index", "responses", ["batch_id"], postgresql_where=sa.text("NOT is_stored")
    )


def downgrade() -> None:
    # Their batches and results stay; only OpenAI's newer form of them goes.
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_table("responses")
