from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from tests.fixtures.batches import LEASE, serving
from worker.settings import settings
from worker.store.database.session import Store
from worker.store.rows.schema import METADATA
from worker.store.shards import counting, shards
from worker.up import is_migrated

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Iterator[Config]:
    """Alembic on an empty database of its own."""
    address = make_url(settings().direct_url).set(drivername="postgresql")
    with psycopg.connect(address.render_as_string(hide_password=False), autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS migrations")
        connection.execute("CREATE DATABASE migrations")
    url = address.set(database="migrations").render_as_string(hide_password=False)
    monkeypatch.setenv("DATABASE_URL", url)
    monkeypatch.delenv("DATABASE_DIRECT_URL", raising=False)
    settings.cache_clear()
    yield Config(toml_file=str(ROOT / "pyproject.toml"))
    monkeypatch.undo()
    settings.cache_clear()


def tables() -> set[str]:
    url = make_url(settings().direct_url).set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    return {name for (name,) in rows}


def test_up_down_and_up_again(config: Config) -> None:
    command.upgrade(config, "head")
    assert tables() == set(METADATA.tables) | {"alembic_version"}
    command.downgrade(config, "base")
    assert tables() == {"alembic_version"}
    command.upgrade(config, "head")
    command.check(config)


def test_a_migrated_database_is_known_without_alembic(config: Config) -> None:
    assert not is_migrated(settings().direct_url)
    command.upgrade(config, "head")
    assert is_migrated(settings().direct_url)
    command.downgrade(config, "-1")
    assert not is_migrated(settings().direct_url)


def run(query: str) -> list[tuple]:
    url = make_url(settings().direct_url).set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False)) as connection:
        cursor = connection.execute(query)  # type: ignore[call-overload]
        return cursor.fetchall() if cursor.description else []


def test_events_keep_their_standing_on_the_way_up_and_down(config: Config) -> None:
    command.upgrade(config, "0001")
    run(
        "INSERT INTO batches"
        " (id, status, params, metadata, num_requests, num_prompt_tokens, max_output_tokens)"
        " SELECT 'batch_' || n, 'completed', '{}', '{}', 1, 1, 1 FROM generate_series(1, 3) AS n"
    )
    run(
        "INSERT INTO webhook_events (id, batch_id, type, url, body, state, attempts) VALUES"
        " ('evt_1', 'batch_1', 'batch.completed', 'https://A.example/x?y', '{}', 'delivered', 2),"
        " ('evt_2', 'batch_2', 'batch.completed', 'https://a.example/', '{}', 'failed', 10),"
        " ('evt_3', 'batch_3', 'batch.completed', 'https://a.example/', '{}', 'pending', 1)"
    )
    run(
        "INSERT INTO delivery_attempts (event_id, number, duration_ms, status_code)"
        " VALUES ('evt_1', 1, 5, 500), ('evt_1', 2, 5, 200), ('evt_3', 1, 5, 500)"
    )
    command.upgrade(config, "head")
    assert run("SELECT event_id, receiver, state, attempts FROM deliveries ORDER BY 1") == [
        ("evt_1", "default https://a.example", "delivered", 2),
        ("evt_2", "default https://a.example", "failed", 10),
        ("evt_3", "default https://a.example", "pending", 1),  # it goes on waiting
    ]
    assert run("SELECT key FROM webhook_receivers") == [("default https://a.example",)]
    assert run("SELECT count(*) FROM delivery_attempts WHERE delivery_id = 'dlv_1'") == [(2,)]
    assert run("SELECT count(*) FROM delivery_attempts WHERE delivery_id = 'dlv_3'") == [(1,)]
    # One event and a replay by the new release, then back.
    run("INSERT INTO webhook_endpoints (id, url, event_types) VALUES ('we_1', 'https://b.example/', '[]')")
    run("INSERT INTO webhook_events (id, type, body) VALUES ('evt_4', 'webhook.ping', '{}')")
    run(
        "INSERT INTO deliveries (id, event_id, endpoint_id, receiver, state) VALUES"
        " ('dlv_4', 'evt_4', 'we_1', 'we_1', 'pending'), ('dlv_5', 'evt_1', 'we_1', 'we_1', 'delivered')"
    )
    run("UPDATE deliveries SET state = 'sending' WHERE id = 'dlv_2'")
    command.downgrade(config, "0001")
    assert run("SELECT id, state FROM webhook_events ORDER BY 1") == [
        ("evt_1", "delivered"),
        ("evt_2", "pending"),
        ("evt_3", "pending"),
    ]


def test_every_migration_gives_up_on_a_lock_early(config: Config) -> None:
    """A migration that waits behind a long query stops everyone who comes after it."""
    for revision in ScriptDirectory.from_config(config).walk_revisions():
        assert Path(revision.path).read_text().count("lock_timeout") >= 2, revision.path


def test_administrators_keep_what_is_theirs_on_the_way_up_and_down(config: Config) -> None:
    command.upgrade(config, "0008_priority")
    run("INSERT INTO tenants (id) VALUES ('acme')")
    run(
        "INSERT INTO api_keys (prefix, digest, tenant_id, name, scopes) VALUES"
        " ('hr_1', '', 'default', 'first', '{read,admin}'), ('hr_2', '', 'acme', 'theirs', '{admin}'),"
        " ('hr_3', '', 'default', 'reader', '{read}')"
    )
    run(
        "INSERT INTO audit_log (actor, act, target, details) VALUES"
        " ('me', 'tenant.create', 'acme', '{}'), ('me', 'key.create', 'hr_2', '{\"tenant\": \"acme\"}'),"
        " ('me', 'key.revoke', 'hr_2', '{}'), ('me', 'key.revoke', 'hr_1', '{}'),"
        " ('me', 'key.revoke', 'x', '{}')"
    )
    scopes = "SELECT scopes FROM api_keys ORDER BY prefix"
    command.upgrade(config, "head")
    assert run(scopes) == [(["read", "admin", "deployment"],), (["admin"],), (["read"],)]
    owners = run("SELECT tenant_id FROM audit_log ORDER BY id")
    assert owners == [("acme",), ("acme",), ("acme",), ("default",), ("",)]
    run("UPDATE api_keys SET scopes = '{submit,deployment}' WHERE prefix = 'hr_3'")
    command.downgrade(config, "0008_priority")
    assert run(scopes) == [(["read", "admin"],), ([],), (["submit", "admin"],)]


def test_batches_that_have_ended_before_are_counted(config: Config) -> None:
    command.upgrade(config, "0004_savings")
    run(
        "INSERT INTO batches (id, status, lane, params, metadata, num_requests, num_prompt_tokens,"
        " max_output_tokens, finished_at) SELECT 'batch_' || n, CASE WHEN n > 3 THEN 'pending' ELSE"
        " 'completed' END, CASE n WHEN 1 THEN 'interactive' ELSE 'batch' END, '{}', '{}', 1, 1, 1,"
        " CASE WHEN n <= 3 THEN now() END FROM generate_series(1, 4) AS n"
    )
    command.upgrade(config, "head")
    assert run("SELECT tenant_id, status, count FROM batch_counts") == [("default", "completed", 2)]


def test_a_batch_in_flight_is_run_on_by_whatever_model_there_is(config: Config) -> None:
    command.upgrade(config, "0007_reliability")
    run(
        "INSERT INTO batches (id, status, params, metadata, num_requests, num_prompt_tokens,"
        " max_output_tokens)"
        " VALUES ('batch_1', 'processing', '{\"max_tokens\": 4}', '{\"a\": \"b\"}', 1, 2, 4)"
    )
    run(
        "INSERT INTO shards (batch_id, position, state, priority, num_requests, fence)"
        " VALUES ('batch_1', 0, 'ready', 3, 1, 1)"
    )
    run(
        "INSERT INTO requests (batch_id, shard_id, position, prompt, add_special_tokens, max_tokens,"
        " num_prompt_tokens) VALUES ('batch_1', 1, 0, 'wheel', true, 4, 2)"
    )
    run("INSERT INTO partial_outputs (request_id, model, token_ids, output) VALUES (1, 'demo', '{7}', 'x')")
    command.upgrade(config, "head")
    store = Store(settings().database_url, has_pooler=settings().has_pooler)
    with store.transaction() as session:
        claim = shards.claim(session, 1, worker="gpu@here", lease=LEASE, model=serving("b" * 32))
        assert claim is not None
        (request,) = claim.requests
        assert (request.prompts, claim.fence) == (("wheel",), 2)
        assert request.partial_output is not None
        assert request.partial_output.model_id is None, "no worker goes on from tokens of an unknown model"
    store.close()
    command.downgrade(config, "0007_reliability")
    assert run("SELECT state, fence FROM shards") == [("running", 2)]


def test_numbered_results_stay_and_there_is_no_way_back_while_one_waits(config: Config) -> None:
    command.upgrade(config, "0023_reasoning")
    run(
        "INSERT INTO batches (id, status, params, metadata, num_requests, num_completed, num_prompt_tokens,"
        " max_output_tokens) VALUES ('batch_1', 'processing', '{}', '{}', 2, 1, 4, 8)"
    )
    run(
        "INSERT INTO shards (batch_id, position, state, priority, num_requests)"
        " VALUES ('batch_1', 0, 'running', 0, 2)"
    )
    run(
        "INSERT INTO requests (batch_id, shard_id, position, prompt, add_special_tokens, max_tokens,"
        " num_prompt_tokens) SELECT 'batch_1', 1, n, 'wheel', true, 4, 2 FROM generate_series(0, 1) AS n"
    )
    insert = (
        "INSERT INTO results (request_id, batch_id, sequence, outcome, num_prompt_tokens, num_cached_tokens,"
        " num_output_tokens) VALUES ({}, 'batch_1', {}, 'completed', 2, 0, 4)"
    )
    run(insert.format(1, 1))
    command.upgrade(config, "head")
    run(insert.format(2, "NULL"))
    store = Store(settings().database_url, has_pooler=settings().has_pooler)
    with pytest.raises(DBAPIError, match="not counted yet"):
        command.downgrade(config, "0023_reasoning")
    command.upgrade(config, "head")  # the migrations after that one were undone
    with store.transaction() as session:
        assert counting.count(session, "batch_1")
    store.close()
    command.downgrade(config, "0023_reasoning")
    assert run("SELECT request_id, sequence FROM results ORDER BY 1") == [(1, 1), (2, 2)]
    assert run("SELECT status, num_completed FROM batches") == [("completed", 2)]


def test_judged_requests_of_experiments_stay_judged_on_the_way_up_and_down(config: Config) -> None:
    command.upgrade(config, "0028_answers")
    run(
        "INSERT INTO experiments (id, batch_id, shadow_id, model_name, model_fingerprint, share,"
        " allowed_loss, resolution, num_planned, num_requests, num_expected) SELECT 'experiment_' || mode,"
        " 'batch_' || mode, CASE mode WHEN 'shadow' THEN 'batch_2' END, 'small', 'b', 0.5, 0, 0.1, 9, 2, 0"
        " FROM (VALUES ('shadow'), ('ab')) AS modes (mode)"
    )
    run(
        "INSERT INTO experiment_lines (experiment_id, position, shadow_position, agrees) VALUES"
        " ('experiment_shadow', 0, 0, true), ('experiment_shadow', 1, 1, NULL), ('experiment_ab', 0, 1, true)"
    )
    query = "SELECT experiment_id, position, {} FROM experiment_lines ORDER BY 1, 2"
    command.upgrade(config, "0029_experiment_report")
    assert run(query.format("is_judged, agrees")) == [
        ("experiment_ab", 0, True, None),
        ("experiment_shadow", 0, True, True),
        ("experiment_shadow", 1, False, None),
    ]
    command.downgrade(config, "0028_answers")
    assert run(query.format("agrees")) == [
        ("experiment_ab", 0, False),
        ("experiment_shadow", 0, True),
        ("experiment_shadow", 1, None),
    ]


def test_experiments_get_their_modes_and_those_that_have_not_begun_go_on_the_way_down(config: Config) -> None:
    command.upgrade(config, "0030_backups")
    insert = (
        "INSERT INTO experiments (id, batch_id, {column}, model_name, model_fingerprint, share, allowed_loss,"
        " resolution, num_planned, num_requests, num_expected) VALUES ('{id}', 'batch_1', {value}, 'small',"
        " 'b', 0.5, 0, 0.1, 9, {number}, 0)"
    )
    run(insert.format(id="shadow", column="shadow_id", value="'batch_2'", number=2))
    run(insert.format(id="ab", column="shadow_id", value="NULL", number=2))
    command.upgrade(config, "0031_experiment_mode")
    assert run("SELECT id, mode FROM experiments ORDER BY 1") == [("ab", "ab"), ("shadow", "shadow")]
    run(insert.format(id="to begin", column="mode", value="'shadow'", number=0))
    command.downgrade(config, "0030_backups")
    assert run("SELECT id FROM experiments ORDER BY 1") == [("ab",), ("shadow",)]
