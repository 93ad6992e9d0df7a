from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy.engine import make_url

from worker.settings import settings
from worker.store.tables import Table

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    """Alembic on an empty database of its own."""
    address = make_url(settings().database_url).set(drivername="postgresql")
    with psycopg.connect(address.render_as_string(hide_password=False), autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS migrations")
        connection.execute("CREATE DATABASE migrations")
    url = address.set(database="migrations").render_as_string(hide_password=False)
    monkeypatch.setenv("DATABASE_URL", url)
    settings.cache_clear()
    yield Config(toml_file=str(ROOT / "pyproject.toml"))
    monkeypatch.undo()
    settings.cache_clear()


def tables() -> set[str]:
    url = make_url(settings().database_url).set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    return {name for (name,) in rows}


def test_up_down_and_up_again(config: Config) -> None:
    command.upgrade(config, "head")
    assert tables() == set(Table.metadata.tables) | {"alembic_version"}
    command.downgrade(config, "base")
    assert tables() == {"alembic_version"}
    command.upgrade(config, "head")
    command.check(config)


def test_every_migration_gives_up_on_a_lock_early(config: Config) -> None:
    """A migration that waits behind a long query stops everyone who comes after it."""
    for revision in ScriptDirectory.from_config(config).walk_revisions():
        assert Path(revision.path).read_text().count("lock_timeout") >= 2, revision.path
