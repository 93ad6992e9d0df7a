"""Usage of tenants, costs, when a shard was claimed, first tokens, and orders to clear prefix caches."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0014_costs"
down_revision = "0013_times"
branch_labels = None
depends_on = None

# What the batches that are still there came to. Nobody had set a price.
COUNT_USAGE = """
    INSERT INTO usage (tenant_id, minute, model, readings)
    SELECT tenant_id, date_trunc('day', created_at, 'UTC'), coalesce(model_fingerprint, ''),
        jsonb_build_object(
            'requests_completed', sum(num_completed), 'requests_failed', sum(num_failed),
            'requests_cancelled', sum(num_cancelled), 'requests_deduplicated', sum(num_deduplicated),
            'input_tokens', sum(input_tokens), 'cached_tokens', sum(cached_tokens),
            'output_tokens', sum(output_tokens), 'prefill_seconds', sum(prefill_seconds),
            'decode_seconds', sum(decode_seconds), 'padding_seconds', sum(padding_seconds)
        )
    FROM batches WHERE tenant_id <> '' GROUP BY 1, 2, 3
"""
COUNT_ENDS = """
    INSERT INTO usage (tenant_id, minute, model, readings)
    SELECT tenant_id, day, model, jsonb_object_agg('batches_ended/' || lane || '/' || status, num)
    FROM (
        SELECT tenant_id, date_trunc('day', finished_at, 'UTC') AS day,
            coalesce(model_fingerprint, '') AS model, lane, status, count(*) AS num
        FROM batches WHERE tenant_id <> '' AND finished_at IS NOT NULL GROUP BY 1, 2, 3, 4, 5
    ) AS ended
    GROUP BY 1, 2, 3
"""
# Of these hits, meters do not say whose they were.
COUNT_HITS = """
    INSERT INTO usage (tenant_id, minute, model, readings)
    SELECT '', date_trunc('day', now(), 'UTC'), model, jsonb_build_object(
        'cache_hits_exact', coalesce(sum((readings ->> 'cache_hits_exact')::float), 0),
        'cache_hits_semantic', coalesce(sum((readings ->> 'cache_hits_semantic')::float), 0)
    )
    FROM meters WHERE readings ? 'cache_hits_exact' OR readings ? 'cache_hits_semantic' GROUP BY 3
"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "usage",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("tenant_id", sa.Text(), server_default="default", nullable=False),
        sa.Column("minute", sa.DateTime(timezone=True), nullable=False),
        sa.Column("model", sa.Text(), server_default="", nullable=False),
        sa.Column("readings", postgresql.JSONB(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="usage_pkey"),
        postgresql_with={"autovacuum_vacuum_threshold": 500},
    )
    op.create_index("usage_minute_index", "usage", ["minute"])
    op.create_index("usage_tenant_id_minute_index", "usage", ["tenant_id", "minute"])
    op.execute(COUNT_USAGE)
    op.execute(COUNT_ENDS)
    op.execute(COUNT_HITS)
    op.add_column(
        "batches", sa.Column("cost_billionths", sa.BigInteger(), server_default="0", nullable=False)
    )
    op.add_column("shards", sa.Column("claimed_at", sa.DateTime(timezone=True)))
    op.add_column("results", sa.Column("first_token_at", sa.DateTime(timezone=True)))
    op.add_column(
        "workers", sa.Column("must_clear_cache", sa.Boolean(), server_default=sa.false(), nullable=False)
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("workers", "must_clear_cache")
    op.drop_column("results", "first_token_at")
    op.drop_column("shards", "claimed_at")
    op.drop_column("batches", "cost_billionths")
    op.drop_table("usage")
