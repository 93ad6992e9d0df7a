"""Alembic's entry: run migrations on Postgres itself, one at a time across processes."""

from alembic import context
from sqlalchemy import create_engine, text

from worker.preflight import ConfigurationError, check_postgres
from worker.settings import refuse, settings
from worker.store.rows.schema import METADATA

# Any number: it only has to be the same in every process that migrates.
MIGRATION_LOCK = 4842_2026


def run() -> None:
    """Apply the migrations under an advisory lock, so that two releases at once do no harm."""
    try:
        check_postgres(settings())
    except ConfigurationError as error:
        refuse(str(error))
    engine = create_engine(settings().direct_url)
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": MIGRATION_LOCK})
            connection.commit()
            context.configure(connection=connection, target_metadata=METADATA, transaction_per_migration=True)
            with context.begin_transaction():
                context.run_migrations()
    finally:
        engine.dispose()  # with it ends the session, which holds the lock


if context.is_offline_mode():
    raise SystemExit("migrations run against a database: set DATABASE_URL")
run()
