"""Batch models: what is counted of each model's requests, in a batch whose requests name several models."""

import sqlalchemy as sa
from alembic import op

revision = "0032_batch_models"
down_revision = "0031_experiment_mode"
branch_labels = None
depends_on = None

COUNTS = (
    "num_requests",
    "num_prompt_tokens",
    "max_output_tokens",
    "num_completed",
    "num_failed",
    "num_cancelled",
    "num_cut",
    "settled_max_tokens",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "completed_output_tokens",
    "cost_billionths",
)


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "batch_models",
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("model_fingerprint", sa.Text(), nullable=False),
        sa.Column("model_name", sa.Text(), nullable=False),
        sa.Column("model_tokenizer", sa.Text(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), server_default="0", nullable=False) for name in COUNTS),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name=op.f("batch_models_batch_id_batches_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("batch_id", "model_fingerprint", name=op.f("batch_models_pkey")),
    )
    op.add_column("batches", sa.Column("is_mixed", sa.Boolean(), server_default=sa.false(), nullable=False))


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("batches", "is_mixed")
    op.drop_table("batch_models")
