r"""Measures what the store carries: simulated workers on one batch, and with a batch for each.

    python -m worker.embedded python -m benchmarks.fleet --workers 64

Each worker claims shards, waits for as long as its work would take, and saves the results; then it begins the
next round. There is no engine. It **empties the database**. One batch and many take turns. The last line is
JSON; its rates are medians.
"""

import argparse
import json
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from alembic import command
from alembic.config import Config
from sqlalchemy.engine import make_url

from benchmarks.polling import percentile_ms
from benchmarks.simulated_workers import SimulatedWorker, Way, WorkerTimes, run_all
from worker.settings import settings
from worker.store.batches import batches
from worker.store.batches.batches import NewBatch
from worker.store.database.notify import DISPATCH
from worker.store.database.session import Store
from worker.store.requests.requests import NewRequest
from worker.up import ROOT
from worker.values.sampling import SamplingParams

TABLES = ("batches", "shards", "requests", "results", "usage")
# Of the pair of runs that shows whether the rate grows with the workers.
PACED_SECONDS = 2.0
MANY = 64
WARM_UP = 5  # rounds


@dataclass(frozen=True, slots=True)
class Load:
    """What each simulated worker does in each round, and for how long."""

    seconds: float  # of a round
    num_shards: int
    shard_size: int

    @property
    def results(self) -> int:
        """The results of a round."""
        return self.num_shards * self.shard_size


class _Watcher(threading.Thread):
    """Counts the notifications of the dispatcher, and the most connections at once."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.num_notifications = self.num_connections = 0
        self.is_over = threading.Event()
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(f"LISTEN {DISPATCH}".encode())

    def run(self) -> None:
        """Count until `is_over`."""
        while not self.is_over.is_set():
            self.num_notifications += sum(1 for _ in self._connection.notifies(timeout=0.2))
            row = self._connection.execute(_CONNECTIONS).fetchone()
            assert row is not None
            self.num_connections = max(self.num_connections, row[0])
        self._connection.close()


class _Postgres:
    """The processes and tables of the server, between two moments."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        found = self._ask("SELECT pg_backend_pid()")
        stat = Path(f"/proc/{found}/stat")
        self._postmaster = int(stat.read_text().rsplit(")", 1)[1].split()[1]) if stat.exists() else None
        self.begin()

    def begin(self) -> None:
        """Count from here."""
        self._cpu, self._wal, self._bytes = self._cpu_seconds(), self._ask(_WAL), self._ask(_SIZE)

    def since(self, num_results: int) -> dict[str, float | None]:
        """Return what 1,000 results have taken."""
        thousands = num_results / 1000
        cpu = None if self._cpu is None else round((self._cpu_seconds() or 0) - self._cpu, 3)
        return {
            "postgres_cpu_s_per_1000": None if cpu is None else round(cpu / thousands, 3),
            "wal_mb_per_1000": round((self._ask(_WAL) - self._wal) / thousands / 2**20, 2),
            "growth_mb_per_1000": round((self._ask(_SIZE) - self._bytes) / thousands / 2**20, 2),
        }

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _ask(self, query: str) -> int:
        row = self._connection.execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0])

    def _cpu_seconds(self) -> float | None:
        """Return the time of the server's processes, those that have ended included; None: not on Linux."""
        if self._postmaster is None:
            return None
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                values = stat.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue  # it has just ended
            if int(stat.parent.name) == self._postmaster:
                ticks += sum(map(int, values[11:15]))  # its own, and those of children that ended
            elif int(values[1]) == self._postmaster:
                ticks += sum(map(int, values[11:13]))
        return ticks / 100


# Of the simulated workers.
_CONNECTIONS = b"SELECT count(*) FROM pg_stat_activity WHERE application_name = 'headrace'"
_WAL = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')"
_SIZE = "SELECT " + " + ".join(f"pg_total_relation_size('{name}')" for name in TABLES)


def measure(
    store: Store, way: Way, url: str, *, num_workers: int, num_rounds: int, load: Load, one_batch: bool
) -> dict[str, Any]:
    """Run the workers on one batch, or on a batch each; return what was measured."""
    with store.engine.begin() as connection:
        connection.exec_driver_sql("TRUNCATE batches, shards, requests, results, usage CASCADE")
    each = num_rounds * load.num_shards
    if one_batch:
        ids = _submit(store, num_workers * each, load.shard_size)
        given = [ids[i::num_workers] for i in range(num_workers)]
    else:
        given = [_submit(store, each, load.shard_size) for _ in range(num_workers)]
    step = load.num_shards
    jobs = [
        SimulatedWorker(f"bench-{i}", [mine[n : n + step] for n in range(0, len(mine), step)], load.seconds)
        for i, mine in enumerate(given)
    ]
    postgres, watcher = _Postgres(url), _Watcher(url)
    watcher.start()
    done = run_all(way, jobs, when_ready=postgres.begin)
    time.sleep(0.5)
    watcher.is_over.set()
    watcher.join()
    taken = postgres.since(done.num_results)
    postgres.close()
    _check(store, done.num_results)
    counted = {"connections": watcher.num_connections, "notifications": watcher.num_notifications}
    return {"workers": num_workers, "batches": 1 if one_batch else num_workers} | (
        _figures(done) | taken | counted
    )


def _figures(done: WorkerTimes) -> dict[str, Any]:
    return {
        "results_s": round(done.results_s, 1),
        "claims_s": round(done.claims_s, 1),
        "claim_p50_ms": percentile_ms(done.claims, 50),
        "claim_p99_ms": percentile_ms(done.claims, 99),
        "save_p50_ms": percentile_ms(done.saves, 50),
        "save_p99_ms": percentile_ms(done.saves, 99),
        "lock_p99_ms": percentile_ms(done.lock_waits or [0.0], 99),
        "lock_worst_ms": percentile_ms(done.lock_waits or [0.0], 100),
    }


def _submit(store: Store, num_shards: int, shard_size: int) -> list[int]:
    """Submit a batch of so many shards; return their ids."""
    params = SamplingParams(max_tokens=40)
    given = [
        NewRequest(prompt=f"Request {i} of this batch. " * 8, max_tokens=40, num_prompt_tokens=20)
        for i in range(num_shards * shard_size)
    ]
    with store.transaction() as session:
        batch_id = batches.submit(session, NewBatch(params=params, requests=given), shard_size=shard_size)
    with store.engine.connect() as connection:
        query = "SELECT id FROM shards WHERE batch_id = %s ORDER BY position"
        return list(connection.exec_driver_sql(query, (batch_id,)).scalars())


def _check(store: Store, num_results: int) -> None:
    """Raise RuntimeError unless every batch has completed, with its results numbered from 1 without gaps."""
    query = """
        SELECT sum(num_completed), count(*) FILTER (WHERE status <> 'completed'), (
            SELECT count(*) FROM (
                SELECT 1 FROM results GROUP BY batch_id
                HAVING min(sequence) <> 1 OR max(sequence) <> count(*) OR count(sequence) <> count(*)
            ) AS bad
        ) FROM batches
    """
    with store.engine.connect() as connection:
        found = tuple(connection.exec_driver_sql(query).one())
    if found != (num_results, 0, 0):
        raise RuntimeError(f"after {num_results} results: counted, not completed, misnumbered: {found}")


def main(arguments: list[str] | None = None) -> int:
    """Measure one batch against a batch each, then 1 worker against 64; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2, help="simulated workers (default 2)")
    parser.add_argument("--rounds", type=int, default=20, help="of each worker (default 20)")
    parser.add_argument("--seconds", type=float, default=0.0, help="of a round; 0 (default): flat out")
    parser.add_argument("--shards", type=int, default=4, help="that each worker claims a round (default 4)")
    parser.add_argument("--shard-size", type=int, default=64, help="requests of a shard (default 64)")
    parser.add_argument("--connections", type=int, default=80, help="of all workers together (default 80)")
    parser.add_argument("--turns", type=int, default=3, help="of one batch and of many (default 3)")
    parser.add_argument("--only", choices=("one", "many"), help="one of the two, and no more")
    options = parser.parse_args(arguments)
    counts = (options.workers, options.rounds, options.shards, options.shard_size, options.connections)
    if min(*counts, options.turns) < 1 or options.seconds < 0:
        parser.error("counts must be at least 1, and --seconds at least 0")
    command.upgrade(Config(toml_file=str(ROOT / "pyproject.toml")), "head")
    config = settings()
    way = Way(config.database_url, config.has_pooler, options.connections)
    plain = make_url(config.direct_url).set(drivername="postgresql").render_as_string(hide_password=False)
    store = Store(config.direct_url, pool_size=2)
    load = Load(options.seconds, options.shards, options.shard_size)

    def run(which: str, num_rounds: int) -> dict[str, Any]:
        return measure(
            store,
            way,
            plain,
            num_workers=options.workers,
            num_rounds=num_rounds,
            load=load,
            one_batch=which == "one",
        )

    sides = [options.only] if options.only else ["one", "many"]
    found: dict[str, list[dict[str, Any]]] = {which: [] for which in sides}
    try:
        # The first run of a server and of this process is slower, whichever it is.
        run(sides[0], min(WARM_UP, options.rounds))
        for turn in range(options.turns):
            # The side that goes first alternates, so that a machine that slows down favours neither.
            for which in sides if turn % 2 == 0 else sides[::-1]:
                found[which].append(run(which, options.rounds))
                print(json.dumps(found[which][-1]), flush=True)
        if not options.only:
            print(json.dumps(_summary(found, _linear(store, way, plain))))
    except RuntimeError as error:
        print(f"benchmarks.fleet: {error}", file=sys.stderr)
        return 2
    finally:
        store.close()
    return 0


def _linear(store: Store, way: Way, url: str) -> dict[int, dict[str, Any]]:
    """Measure 1 and 64 workers on one batch, at a pace that leaves the machine room."""
    load = Load(PACED_SECONDS, num_shards=2, shard_size=16)
    found = {}
    for count in (1, MANY):
        found[count] = measure(store, way, url, num_workers=count, num_rounds=8, load=load, one_batch=True)
        print(json.dumps(found[count]), flush=True)
    return found


def _summary(found: dict[str, list[dict[str, Any]]], paced: dict[int, dict[str, Any]]) -> dict[str, Any]:
    one, many = (statistics.median(run["results_s"] for run in found[which]) for which in ("one", "many"))
    return {
        "workers": found["one"][0]["workers"],
        "results_s_one_batch": one,
        "results_s_many": many,
        "claim_p99_ms": paced[MANY]["claim_p99_ms"],
        "linear_at_64": round(paced[MANY]["results_s"] / MANY / paced[1]["results_s"], 3),
    }


if __name__ == "__main__":
    sys.exit(main())
