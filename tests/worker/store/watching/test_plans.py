"""No query that runs all the time reads a whole table, however much is in it."""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.orm import Session

from tests.fixtures.batches import LEASE, result
from worker.settings import settings
from worker.store.batches import batch_views, batches, idempotency, starts
from worker.store.batches.labels import Labels
from worker.store.cache import response_cache
from worker.store.cache.response_cache import Sought
from worker.store.counts import batch_counts
from worker.store.database.session import Store
from worker.store.requests import result_views, tally
from worker.store.shards import counting, fair_slots, leases, shards, tickets
from worker.store.shards.shards import Claim, Progress
from worker.store.sweeping import due_work
from worker.store.watching import outlook, overview, retention
from worker.store.webhooks import deliveries, delivery_log, delivery_tickets

LARGE = {
    *("batches", "shards", "requests", "results", "webhook_events", "deliveries", "idempotency_keys"),
    "cached_responses",
}
NUM_BATCHES = 5_000  # of 10 requests and one shard each; the last 200 are live, and 20 of those run

FILL = """
    SET LOCAL session_replication_role = replica;
    INSERT INTO batches (id, status, params, name, metadata, num_requests, num_completed, num_prompt_tokens,
                         max_output_tokens, created_at, started_at, finished_at)
        SELECT 'batch_' || b, CASE WHEN b <= 4800 THEN 'completed' WHEN b <= 4820 THEN 'processing'
               ELSE 'pending' END, '{"max_tokens": 9, "stop": []}', 'run ' || b % 999,
               jsonb_build_object('run', CAST(b AS text)), 10,
               CASE WHEN b <= 4800 THEN 10 ELSE 0 END, 30, 90,
               now() - make_interval(mins => 30000 - b), now(),
               CASE WHEN b <= 4800 THEN now() - make_interval(mins => 30000 - b) END
        FROM generate_series(1, 5000) b;
    INSERT INTO shards (batch_id, position, state, priority, num_requests, fence, lease_expires_at)
        SELECT 'batch_' || b, 0, CASE WHEN b <= 4800 THEN 'finished' WHEN b <= 4820 THEN 'running'
               ELSE 'ready' END, 0, 10, 1, CASE WHEN b BETWEEN 4801 AND 4820 THEN now() END
        FROM generate_series(1, 5000) b;
    INSERT INTO requests (batch_id, shard_id, position, prompt, add_special_tokens, max_tokens,
                          num_prompt_tokens, digest)
        SELECT 'batch_' || b, b, p, 'prompt ' || p, true, 9, 3, decode(lpad(to_hex(p), 32, '0'), 'hex')
        FROM generate_series(1, 5000) b, generate_series(0, 9) p;
    INSERT INTO results (request_id, batch_id, sequence, outcome, output, finish_reason, num_prompt_tokens,
                         num_cached_tokens, num_output_tokens)
        SELECT id, batch_id, position + 1, 'completed', 'text', 'stop', 3, 0, 5
        FROM requests WHERE shard_id <= 4800;
    INSERT INTO webhook_events (id, batch_id, type, url, body)
        SELECT 'evt_' || b, 'batch_' || b, 'batch.completed', 'https://example.com', '{}'
        FROM generate_series(1, 4800) b;
    INSERT INTO deliveries (id, event_id, receiver, state)
        SELECT 'dlv_' || b, 'evt_' || b, 'https://example.com', 'delivered' FROM generate_series(1, 4800) b;
    INSERT INTO idempotency_keys (key, fingerprint, batch_id)
        SELECT 'key ' || b, '', 'batch_' || b FROM generate_series(1, 4800) b;
    INSERT INTO cached_responses (key, "group", payload, expires_at)
        SELECT decode(lpad(to_hex(k), 32, '0'), 'hex'), '\\x00', '{}', now() + interval '1 day'
        FROM generate_series(1, 5000) k
"""


@pytest.fixture(scope="module")
def filled(database_url: str) -> Iterator[Store]:
    from worker.store.rows.schema import METADATA

    names = ", ".join(table.name for table in METADATA.sorted_tables)
    store = Store(database_url, has_pooler=settings().has_pooler)
    with store.transaction() as session:
        session.execute(text(f"TRUNCATE {names} RESTART IDENTITY CASCADE"))
        for statement in FILL.split(";\n"):
            session.execute(text(statement.replace(":", "\\:")))
    with store.transaction() as session:
        session.execute(text(f"ANALYZE {names}"))
    yield store
    with store.transaction() as session:
        session.execute(text(f"TRUNCATE {names} RESTART IDENTITY CASCADE"))
    store.close()


def claim(session: Session, shard_id: int = 4900) -> Claim:
    claimed = shards.claim(session, shard_id, worker="gpu@here", lease=LEASE)
    assert claimed is not None
    return claimed


def save(session: Session) -> None:
    claimed = claim(session)
    results = [result(one.id) for one in claimed.requests]
    shards.save(session, [Progress(claimed, results[:4], 5)], lease=LEASE)
    shards.save(session, [Progress(claimed, results[4:], 0, is_last=True)], lease=LEASE)


def cancel(session: Session) -> None:
    batches.cancel(session, "batch_4950")


HOT: dict[str, Callable[[Session], Any]] = {
    "claim": claim,
    "save and finish": save,
    "release": lambda session: shards.release(session, claim(session)),
    "behind": lambda session: tally.is_behind(session, "batch_4810"),
    "sweep: batches behind": lambda session: tally.batches_behind(session, limit=100),
    "count": lambda session: counting.count(session, "batch_4810"),
    "tickets for shards": lambda session: tickets.issue_shards(
        session, window=12, reissue_after=timedelta(seconds=2)
    ),
    "tickets for deliveries": lambda session: delivery_tickets.issue(
        session, window=12, reissue_after=timedelta(seconds=2), most_at_once=2
    ),
    "tickets: interactive": lambda session: fair_slots.ready_interactive(session, limit=16),
    "poll a batch": lambda session: batch_views.get(session, "batch_4810"),
    "list by name": lambda session: batch_views.page(
        session, after=None, limit=20, labels=Labels(name="run 7")
    ),
    "list by metadata": lambda session: batch_views.page(
        session, after=None, limit=20, labels=Labels(metadata={"run": "7"})
    ),
    "poll its delivery": lambda session: delivery_log.delivery_of(session, "batch_100"),
    "outputs of a small batch": lambda session: result_views.outputs(session, "batch_100"),
    "page of results": lambda session: result_views.page(session, "batch_100", after=4, limit=3),
    "cancel": cancel,
    "idempotency key": lambda session: idempotency.find(session, "key 7", ""),
    "sweep: what is due": due_work.find,
    "sweep: leases": lambda session: leases.expired(session, limit=100),
    "sweep: return a shard": lambda session: leases.return_expired(
        session, 4810, "batch_4810", max_attempts=5
    ),
    "sweep: stopping batches": lambda session: batches.settle_stopping(session, limit=100),
    "sweep: batches to start": lambda session: starts.start_due(session, limit=100),
    "sweep: deliveries": lambda session: deliveries.return_expired(session, limit=100),
    "sweep: keys": idempotency.forget_the_old,
    "sweep: old results": lambda session: retention.drop_old_results(
        session, kept_for=timedelta(days=1), limit=100
    ),
    "count by status": batch_counts.by_status,
    "estimate: last end": outlook.last_end,
    "estimate: lengths": outlook.recent_outputs,
    "estimate: outcomes": outlook.forecast_outcomes,
    "estimate: live batches": lambda session: outlook.live_batches(session, limit=100),
    "cache: look up": lambda session: response_cache.find(session, [bytes(15) + b"\1", bytes(15) + b"\2"]),
    "cache: nearest": lambda session: response_cache.find_nearest(
        session, [Sought(b"\0", (1.0, 0.0), timedelta(hours=1))], least_similarity=0.9
    ),
    "cache: sweep": response_cache.drop_expired,
    "estimate: backlog": outlook.backlog,
    "overview: batches": lambda session: overview.live_batches(session, limit=50),
    "overview: failures": lambda session: overview.failures(session, limit=20),
    "overview: receivers": lambda session: overview.failing_receivers(session, limit=20),
    "overview: deliveries": overview.delivery_counts,
}


def queries_of(store: Store, run: Callable[[Session], Any]) -> list[tuple[str, Any]]:
    """Return the statements that this executes, with their parameters; what it changes is undone."""
    statements: list[tuple[str, Any]] = []

    def keep(_conn: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        statements.append((statement, parameters))

    event.listen(store.engine, "before_cursor_execute", keep)
    try:
        with store.transaction() as session:
            run(session)
            session.flush()
            session.rollback()
    finally:
        event.remove(store.engine, "before_cursor_execute", keep)
    starts = ("SELECT", "WITH", "UPDATE", "DELETE")
    return [one for one in statements if one[0].lstrip().upper().startswith(starts)]


@pytest.mark.parametrize("name", HOT)
def test_no_hot_query_reads_a_whole_table(filled: Store, name: str) -> None:
    queries = queries_of(filled, HOT[name])
    assert queries
    with filled.transaction() as session:
        for statement, parameters in queries:
            plan = (
                session.connection()
                .exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters)
                .scalar()
            )
            scanned = set(_scanned_whole(plan[0]["Plan"]))
            assert not scanned & LARGE, f"{statement}\n{plan}"


LARGE_BATCH = """
    SET LOCAL session_replication_role = replica;
    DELETE FROM results;
    DELETE FROM requests WHERE shard_id <= 4800;
    DELETE FROM shards WHERE id <= 4800;
    UPDATE batches SET num_completed = 60000, num_requests = 60010 WHERE id = 'batch_4900';
    INSERT INTO shards (batch_id, position, state, priority, num_requests, fence)
        SELECT 'batch_4900', s, 'finished', 0, 50, 1 FROM generate_series(1, 1200) s;
    INSERT INTO requests (batch_id, shard_id, position, prompt, add_special_tokens, max_tokens,
                          num_prompt_tokens)
        SELECT batch_id, id, 50 * position + p, 'prompt ' || p, true, 9, 3
        FROM shards, generate_series(1, 50) p WHERE batch_id = 'batch_4900' AND state = 'finished';
    INSERT INTO results (request_id, batch_id, sequence, outcome, output, finish_reason, num_prompt_tokens,
                         num_cached_tokens, num_output_tokens)
        SELECT requests.id, requests.batch_id, row_number() OVER (), 'completed', 'text', 'stop', 3, 0, 5
        FROM requests JOIN shards ON shards.id = shard_id
        WHERE requests.batch_id = 'batch_4900' AND state = 'finished';
    ANALYZE shards, requests, results
"""


@pytest.mark.parametrize("name", ["save and finish", "count"])
def test_no_plan_for_any_parameters_reads_all_of_a_large_batch(filled: Store, name: str) -> None:
    with filled.transaction() as session:
        queries = queries_of(filled, HOT[name])
        for statement in LARGE_BATCH.split(";\n"):
            session.execute(text(statement))
        for statement, parameters in queries:
            # So Postgres plans a statement that runs often.
            numbered = re.sub(r"%\((\w+)\)s", _numbered(parameters), statement)
            explained = session.connection().exec_driver_sql(
                f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {numbered}"
            )
            plan = explained.scalar()[0]["Plan"]
            assert not set(_scanned_whole(plan)) & LARGE, f"{statement}\n{plan}"
        session.rollback()


def _numbered(parameters: Mapping[str, Any]) -> Callable[[re.Match[str]], str]:
    """Return what writes parameters as Postgres numbers them, of a type that it would not find by itself."""
    names = list(parameters)

    def number(found: re.Match[str]) -> str:
        kind = "::interval" if isinstance(parameters[found[1]], timedelta) else ""
        return f"${names.index(found[1]) + 1}{kind}"

    return number


def test_the_check_sees_a_whole_scan(filled: Store) -> None:
    with filled.transaction() as session:
        plan = session.scalar(text("EXPLAIN (FORMAT JSON) SELECT count(*) FROM results WHERE output = 'x'"))
    assert set(_scanned_whole(plan[0]["Plan"])) == {"results"}


def _scanned_whole(node: dict[str, Any]) -> Iterator[str]:
    if node["Node Type"] == "Seq Scan":
        yield node["Relation Name"]
    for child in node.get("Plans", []):
        yield from _scanned_whole(child)
