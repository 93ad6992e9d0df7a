r"""Measures what it takes to drop old requests: in passes, as the service does, and with their partition.

    python -m worker.embedded python -m benchmarks.retention --rows 1000000

Requests of some days, with their results, fill the service's tables, and copies of these that are partitioned
by day. The oldest day is dropped from both, and what a worker does all day is timed in both. It **empties the
database**. The last line is JSON.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import psycopg
from alembic import command
from alembic.config import Config
from psycopg.rows import TupleRow
from sqlalchemy.engine import make_url

from benchmarks.polling import percentile_ms
from worker.dispatcher.dispatcher import DROP_LIMIT
from worker.settings import settings
from worker.store.database.session import Store
from worker.store.watching import retention
from worker.up import ROOT

BATCH_SIZE, SHARD_SIZE = 10_000, 64
SAVED = 256  # results of one save
NUM_TIMED = 200
VACUUMED = ("requests", "results", "shards")
MOST_BATCHES = 10  # that are dropped in passes, to time one
OUTPUT = "What a request of this length generates, as text. " * 4

Connection = psycopg.Connection[TupleRow]

FILL = """
    INSERT INTO batches (id, status, params, metadata, num_requests, num_completed, num_prompt_tokens,
                         max_output_tokens, created_at, started_at, finished_at)
        SELECT 'batch_' || b, 'completed', '{"max_tokens": 40}', '{}', %(batch)s, %(batch)s, 20, 40,
               day, day, day
        FROM generate_series(1, %(batches)s) b, LATERAL (
            SELECT now() - make_interval(days => %(days)s - (b - 1) * %(days)s / %(batches)s)
        ) AS one(day);
    INSERT INTO shards (batch_id, position, state, priority, num_requests, fence)
        SELECT 'batch_' || b, s, 'finished', 0, %(shard)s, 1
        FROM generate_series(1, %(batches)s) b, generate_series(0, (%(batch)s - 1) / %(shard)s) s;
    INSERT INTO requests (batch_id, shard_id, position, prompt, add_special_tokens, max_tokens,
                          num_prompt_tokens)
        SELECT shards.batch_id, shards.id, shards.position * %(shard)s + p,
               repeat('Request ' || p || ' of this batch. ', 8), true, 40, 20
        FROM shards, generate_series(0, %(shard)s - 1) p
        WHERE shards.position * %(shard)s + p < %(batch)s;
    INSERT INTO results (request_id, batch_id, sequence, outcome, output, finish_reason, num_prompt_tokens,
                         num_cached_tokens, num_output_tokens)
        SELECT id, batch_id, position + 1, 'completed', %(output)s, 'length', 20, 0, 40 FROM requests
"""
# The day is part of every key. There is no foreign key: a day of requests goes together with that of results.
PARTITIONED = """
    DROP TABLE IF EXISTS requests_by_day, results_by_day;
    CREATE TABLE requests_by_day (LIKE requests INCLUDING DEFAULTS, day date NOT NULL)
        PARTITION BY RANGE (day);
    CREATE TABLE results_by_day (LIKE results INCLUDING DEFAULTS, day date NOT NULL) PARTITION BY RANGE (day)
"""
# Built over the rows, which takes less than to keep them up to date row by row.
KEYS = """
    ALTER TABLE requests_by_day ADD PRIMARY KEY (id, day);
    CREATE UNIQUE INDEX ON requests_by_day (batch_id, position, day);
    CREATE INDEX ON requests_by_day (shard_id);
    CREATE UNIQUE INDEX ON requests_by_day (batch_id, custom_id, day) WHERE custom_id IS NOT NULL;
    ALTER TABLE results_by_day ADD PRIMARY KEY (request_id, day);
    CREATE UNIQUE INDEX ON results_by_day (batch_id, sequence, day);
    CREATE INDEX ON results_by_day (batch_id) WHERE sequence IS NULL
"""
SIZE = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relname ~ %s"
PLAIN, BY_DAY = "^(requests|results)$", r"^(requests|results)_\d{8}$"
OLD_BATCHES = """
    SELECT count(*) FROM batches
    WHERE results_dropped_at IS NULL AND finished_at < now() - make_interval(secs => CAST(%s AS float))
"""
COPY_ROWS = """
    INSERT INTO requests_by_day SELECT requests.*, CAST(created_at AS date)
        FROM requests JOIN batches ON batches.id = batch_id;
    INSERT INTO results_by_day SELECT results.*, CAST(batches.created_at AS date)
        FROM results JOIN batches ON batches.id = batch_id
"""
LIVE_READ = """
    SELECT requests.id, requests.prompt FROM requests{suffix} requests
    LEFT JOIN results{suffix} results ON results.request_id = requests.id {joined}
    WHERE requests.shard_id = %(shard)s AND results.request_id IS NULL {where} ORDER BY requests.position
"""
SAVE = """
    INSERT INTO results{suffix} (request_id, batch_id, outcome, output, num_prompt_tokens, num_cached_tokens,
                                 num_output_tokens {column})
    SELECT 1000000000 + n, 'batch_1', 'completed', %(output)s, 20, 0, 40 {value}
    FROM generate_series(1, %(saved)s) n
"""


def ask(connection: Connection, query: str, *given: str) -> int:
    """Return the only value of a query's only row."""
    row = connection.execute(query.encode(), given).fetchone()
    assert row is not None
    return int(row[0])


def fill(connection: Connection, *, num_rows: int, num_days: int) -> None:
    """Fill the tables of the service, and their partitioned copies, with the same rows."""
    values = {
        "batch": BATCH_SIZE,
        "batches": max(num_days, num_rows // BATCH_SIZE),
        "days": num_days,
        "shard": SHARD_SIZE,
        "output": OUTPUT,
    }
    with psycopg.ClientCursor(connection) as cursor:
        cursor.execute(b"TRUNCATE batches, shards, requests, results CASCADE")
        for table in VACUUMED:  # the vacuum is timed by itself
            cursor.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)".encode())
        cursor.execute(b"SET session_replication_role = replica")  # no foreign keys are checked
        cursor.execute(FILL.encode(), values)
        cursor.execute(b"SET session_replication_role = origin")
        cursor.execute(PARTITIONED.encode())
        for (day,) in cursor.execute(b"SELECT DISTINCT CAST(created_at AS date) FROM batches").fetchall():
            until = day + timedelta(days=1)
            for table in ("requests", "results"):
                part = f"{table}_{day:%Y%m%d}"
                within = f"FOR VALUES FROM ('{day}') TO ('{until}') WITH (autovacuum_enabled = false)"
                cursor.execute(f"CREATE TABLE {part} PARTITION OF {table}_by_day {within}".encode())
        cursor.execute(COPY_ROWS.encode())
        cursor.execute(KEYS.encode())
        cursor.execute(b"VACUUM ANALYZE batches, shards, requests, results, requests_by_day, results_by_day")
        cursor.execute(b"CHECKPOINT")


def timed(connection: Connection, work: Callable[[], object]) -> dict[str, float]:
    """Do some work; return its seconds, and the MiB that it writes to the log."""
    wal = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')"
    before, began = ask(connection, wal), time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    return {"seconds": round(seconds, 2), "wal_mb": round((ask(connection, wal) - before) / 2**20, 1)}


def size_mb(connection: Connection, names: str) -> float:
    """Return the size of tables with their indexes, in MiB."""
    return round(ask(connection, SIZE, names) / 2**20, 1)


def drop_in_passes(store: Store, connection: Connection, num_days: int) -> dict[str, Any]:
    """Drop the oldest day as the dispatcher does; return what it took, and what was left to vacuum.

    Of a day of many batches, it drops the first `MOST_BATCHES`.
    """
    passes: list[float] = []
    kept_for = timedelta(days=num_days) - timedelta(hours=1)
    seconds = str(kept_for.total_seconds())

    def work() -> None:
        num_kept = max(0, ask(connection, OLD_BATCHES, seconds) - MOST_BATCHES)
        while ask(connection, OLD_BATCHES, seconds) > num_kept:
            began = time.perf_counter()
            with store.transaction() as session:
                retention.drop_old_results(session, kept_for=kept_for, limit=DROP_LIMIT)
            passes.append(time.perf_counter() - began)

    num_before, before = ask(connection, "SELECT count(*) FROM requests"), size_mb(connection, PLAIN)
    found: dict[str, Any] = timed(connection, work)
    found["num_dropped"] = num_before - ask(connection, "SELECT count(*) FROM requests")
    found["pass_p99_ms"] = percentile_ms(passes, 99)
    found["vacuum"] = timed(connection, lambda: connection.execute(b"VACUUM requests, results, shards"))
    return found | {"mb_before": before, "mb_after": size_mb(connection, PLAIN)}


def drop_partition(connection: Connection) -> dict[str, Any]:
    """Drop the oldest day with its partitions; return what it took."""
    (day,) = connection.execute(b"SELECT min(day) FROM requests_by_day").fetchone() or (None,)
    assert day is not None
    before = size_mb(connection, BY_DAY)
    tables = f"DROP TABLE results_{day:%Y%m%d}, requests_{day:%Y%m%d}".encode()
    found: dict[str, Any] = timed(connection, lambda: connection.execute(tables))
    return found | {"mb_before": before, "mb_after": size_mb(connection, BY_DAY)}


def time_work(connection: Connection) -> dict[str, float]:
    """Time what workers do all day, in milliseconds: the read of a claim, and the results of a save."""
    live = connection.execute(b"SELECT id FROM shards ORDER BY id DESC LIMIT %d" % NUM_TIMED).fetchall()
    (day,) = connection.execute(b"SELECT max(day) FROM requests_by_day").fetchone() or (None,)
    named = {"joined": "AND results.day = requests.day", "where": f"AND requests.day = '{day}'"}
    sides = {
        "plain": ("", {"joined": "", "where": ""}, {"column": "", "value": ""}),
        "by_day": ("_by_day", named, {"column": ", day", "value": f", DATE '{day}'"}),
        "by_day_unnamed": ("_by_day", {"joined": "", "where": ""}, None),
    }
    found = {}
    for side, (suffix, read, write) in sides.items():
        reads, writes = [], []
        for (shard,) in live:
            began = time.perf_counter()
            query = LIVE_READ.format(suffix=suffix, **read)
            connection.execute(query.encode(), {"shard": shard}).fetchall()
            reads.append(time.perf_counter() - began)
        found[f"claim_{side}_ms"] = percentile_ms(reads, 50)
        for _ in range(NUM_TIMED // 4) if write is not None else ():
            with connection.transaction(force_rollback=True):
                if not suffix:
                    connection.execute(b"SET LOCAL session_replication_role = replica")
                began = time.perf_counter()
                insert = SAVE.format(suffix=suffix, **write or {})
                connection.execute(insert.encode(), {"output": OUTPUT, "saved": SAVED})
                writes.append(time.perf_counter() - began)
        if writes:
            found[f"save_{side}_ms"] = percentile_ms(writes, 50)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="requests, with a result each")
    parser.add_argument("--days", type=int, default=10, help="that they are of")
    options = parser.parse_args(arguments)
    if options.days < 2 or options.rows < options.days:
        parser.error("--days must be at least 2, and --rows at least --days")
    command.upgrade(Config(toml_file=str(ROOT / "pyproject.toml")), "head")
    url = settings().database_url
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    store = Store(url, pool_size=1)
    try:
        with psycopg.connect(plain, autocommit=True) as connection:
            fill(connection, num_rows=options.rows, num_days=options.days)
            found: dict[str, Any] = {"rows": options.rows, "days": options.days}
            found["work"] = time_work(connection)
            print(json.dumps(found), flush=True)
            found["passes"] = drop_in_passes(store, connection, options.days)
            print(json.dumps(found["passes"]), flush=True)
            found["partition"] = drop_partition(connection)
            connection.execute(b"DROP TABLE requests_by_day, results_by_day")
            connection.execute(b"TRUNCATE batches, shards, requests, results CASCADE")
            for table in VACUUMED:
                connection.execute(f"ALTER TABLE {table} RESET (autovacuum_enabled)".encode())
    finally:
        store.close()
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
