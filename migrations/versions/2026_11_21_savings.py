"""De-duplication, response cache, device seconds, meters, retention; indexes and autovacuum by table."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004_savings"
down_revision = "0003_files"
branch_labels = None
depends_on = None

SECONDS = ("prefill_seconds", "decode_seconds", "padding_seconds")
# Rows here are rewritten all the time: room for that on each page, and a vacuum before the dead pile up.
STORAGE = {
    "batches": "fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02",
    "deliveries": "fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02",
    "webhook_events": "fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02",
    "workers": "fillfactor = 50, autovacuum_vacuum_threshold = 500",
    "meters": "fillfactor = 50, autovacuum_vacuum_threshold = 500",
}
CACHE_MODES = ("off", "exact", "semantic")
SOURCES = ("engine", "duplicate", "exact_cache", "semantic_cache")


def _one_of(name: str, values: tuple[str, ...]) -> sa.Enum:
    return sa.Enum(*values, name=name, native_enum=False, create_constraint=True, length=32)


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), server_default="0", nullable=False)


def _seconds(table: str) -> None:
    for name in SECONDS:
        op.add_column(table, sa.Column(name, sa.Double(), server_default="0", nullable=False))


# The semantic cache needs pgvector, the rest does not: without it, or without the right to add it, go on.
ADD_PGVECTOR = """
    DO $$ BEGIN
        IF EXISTS (SELECT FROM pg_available_extensions WHERE name = 'vector') THEN
            CREATE EXTENSION IF NOT EXISTS vector;
        END IF;
    EXCEPTION WHEN insufficient_privilege THEN NULL;
    END $$
"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column(
        "batches", sa.Column("cache", _one_of("cache", CACHE_MODES), server_default="off", nullable=False)
    )
    op.add_column("batches", sa.Column("cache_similarity", sa.Double(), nullable=True))
    op.add_column("batches", _count("num_deduplicated"))
    op.add_column("batches", _count("num_cache_hits"))
    _seconds("batches")
    op.add_column("batches", sa.Column("results_dropped_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        "batches_finished_index",
        "batches",
        ["finished_at"],
        postgresql_where=sa.text("finished_at IS NOT NULL AND results_dropped_at IS NULL"),
    )
    op.add_column("requests", sa.Column("digest", sa.LargeBinary(), nullable=True))
    op.add_column("requests", sa.Column("cache", _one_of("cache", CACHE_MODES), nullable=True))
    op.add_column(
        "results", sa.Column("source", _one_of("source", SOURCES), server_default="engine", nullable=False)
    )
    op.add_column("results", sa.Column("similarity", sa.Double(), nullable=True))
    _seconds("results")
    op.create_table(
        "cached_responses",
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("tenant_id", sa.Text(), server_default="default", nullable=False),
        sa.Column("group", sa.LargeBinary(), nullable=False),
        sa.Column("payload", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("embedding", postgresql.ARRAY(sa.REAL()), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("cached_responses_pkey")),
    )
    op.create_index(op.f("cached_responses_expires_at_index"), "cached_responses", ["expires_at"])
    op.create_index(
        "cached_responses_group_index",
        "cached_responses",
        ["group"],
        postgresql_where=sa.text("embedding IS NOT NULL"),
    )
    op.create_table(
        "meters",
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("minute", sa.DateTime(timezone=True), nullable=False),
        sa.Column("readings", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.PrimaryKeyConstraint("worker", "minute", name=op.f("meters_pkey")),
    )
    op.create_index(op.f("meters_minute_index"), "meters", ["minute"])
    for table, options in STORAGE.items():
        op.execute(f"ALTER TABLE {table} SET ({options})")
    op.execute(ADD_PGVECTOR)


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_table("meters")
    op.drop_table("cached_responses")
    for table, options in STORAGE.items():
        if table != "meters":
            names = ", ".join(option.partition(" ")[0] for option in options.split(", "))
            op.execute(f"ALTER TABLE {table} RESET ({names})")
    for name in (*SECONDS, "similarity", "source"):
        op.drop_column("results", name)
    op.drop_column("requests", "cache")
    op.drop_column("requests", "digest")
    op.drop_index("batches_finished_index", table_name="batches")
    for name in (
        "results_dropped_at",
        *SECONDS,
        "num_cache_hits",
        "num_deduplicated",
        "cache_similarity",
        "cache",
    ):
        op.drop_column("batches", name)
