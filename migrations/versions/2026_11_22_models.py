"""The model that a batch was accepted for, and that a result was made by; meters by model.

A batch that is live now has none recorded: any worker may run it, as before.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009_models"
down_revision = "0008_priority"
branch_labels = None
depends_on = None

IS_READY = sa.text("state IN ('ready')")
BY_TENANT = ["tenant_id", sa.text("priority DESC")]
INDEXES = {
    "shards_due_index": [*BY_TENANT, "expires_at", "id"],
    "shards_fewest_index": [*BY_TENANT, "position", "expires_at", "id"],
}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "served_models",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("weight_format", sa.Text(), nullable=False),
        sa.Column("dtype", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="served_models_pkey"),
        sa.UniqueConstraint(
            "fingerprint", "name", "weight_format", "dtype",
            name="served_models_fingerprint_name_weight_format_dtype_key",
        ),
    )  # fmt: skip
    for column in ("model_name", "model_fingerprint", "model_tokenizer"):
        op.add_column("batches", sa.Column(column, sa.Text(), nullable=True))
    op.add_column("shards", sa.Column("model_fingerprint", sa.Text(), server_default="", nullable=False))
    op.add_column("workers", sa.Column("model_fingerprint", sa.Text(), nullable=True))
    op.add_column("results", sa.Column("model_id", sa.BigInteger(), nullable=True))
    # A name does not say which model it was: what is stored under one is computed again.
    op.add_column("partial_outputs", sa.Column("model_id", sa.BigInteger(), nullable=True))
    op.drop_column("partial_outputs", "model")
    for name, columns in INDEXES.items():
        op.drop_index(name, table_name="shards")
        op.create_index(name, "shards", ["model_fingerprint", *columns], postgresql_where=IS_READY)
    op.add_column("meters", sa.Column("model", sa.Text(), server_default="", nullable=False))
    op.drop_constraint("meters_pkey", "meters")
    op.create_primary_key("meters_pkey", "meters", ["worker", "minute", "model"])


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    # Of a worker's minute one row is left; its others are lost, as the sum of objects is no matter of SQL.
    op.execute(
        "DELETE FROM meters WHERE (worker, minute, model) NOT IN"
        " (SELECT worker, minute, max(model) FROM meters GROUP BY worker, minute)"
    )
    op.drop_constraint("meters_pkey", "meters")
    op.drop_column("meters", "model")
    op.create_primary_key("meters_pkey", "meters", ["worker", "minute"])
    for name, columns in INDEXES.items():
        op.drop_index(name, table_name="shards")
        op.create_index(name, "shards", columns, postgresql_where=IS_READY)
    op.add_column("partial_outputs", sa.Column("model", sa.Text(), server_default="", nullable=False))
    op.alter_column("partial_outputs", "model", server_default=None)
    op.drop_column("partial_outputs", "model_id")
    op.drop_column("results", "model_id")
    op.drop_column("workers", "model_fingerprint")
    op.drop_column("shards", "model_fingerprint")
    for column in ("model_tokenizer", "model_fingerprint", "model_name"):
        op.drop_column("batches", column)
    op.drop_table("served_models")
