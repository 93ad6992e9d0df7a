"""`python -m benchmarks.big_batches`: what files of 50,000 and 1,000,000 requests cost. Last line JSON.

Run under `python -m worker.embedded`. The API and the files process are real, over embedded Postgres; there
is no engine, so that nothing else takes the machine's time. Accepted: from the first byte of the upload until
every request is a row in Postgres. Durable: until the batch has its id; its lines are in the file store then.
Memory: the highest resident set of the API, for 50,000 less that before. Polls: GET /v1/batches/{id} all the
while. Claims: with so many requests pending.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil

from api.cli.session import SessionError, choose_ports
from worker.settings import DEMO_MODEL, settings
from worker.store import shards
from worker.store.session import Store
from worker.up import ROOT, read_procfile, start

SMALL, LARGE = 50_000, 1_000_000
CLAIM_SIZES = (100_000, 1_000_000)
NUM_CLAIMS = 300
READ_SECONDS = 900.0


def write_input(path: Path, count: int) -> None:
    """Write completions of 200 to 600 characters of the held-out text."""
    text = (DEMO_MODEL / "heldout.txt").read_text("utf-8")
    with path.open("w") as file:
        for i in range(count):
            at = (i * 7919) % (len(text) - 600)
            body = {
                "model": DEMO_MODEL.name,
                "prompt": text[at : at + 200 + i * 31 % 400],
                "max_tokens": 64,
                "temperature": 0.7,
            }
            line = {"custom_id": f"row-{i}", "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(line) + "\n")


class Watch:
    """Polls a batch and the API's memory from a thread of its own."""

    def __init__(self, url: str, pid: int) -> None:
        self.path = "/health"
        self.seconds: list[float] = []
        self.peak = 0
        self._client = httpx.Client(base_url=url, timeout=60)
        self._process = psutil.Process(pid)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        while not self._stopping.wait(0.02):
            started = time.perf_counter()
            self._client.get(self.path).raise_for_status()
            self.seconds.append(time.perf_counter() - started)
            self.peak = max(self.peak, self._process.memory_info().rss)


@contextmanager
def service(log: Path) -> Iterator[tuple[str, int]]:
    """Run the API and the files process; yield the API's address and process id."""
    commands = read_procfile(ROOT / "Procfile")
    environment = os.environ | {
        "HEADRACE_MAX_REQUESTS_PER_BATCH": str(LARGE),
        "HEADRACE_MAX_FILE_BYTES": str(4 << 30),
    }
    with log.open("w") as output:
        if start(commands["release"], output=output).wait():
            raise SessionError(f"the migrations failed: see {log}")
        processes = [
            start(commands[name], output=output, environment=environment) for name in ("web", "files")
        ]
        url = f"http://127.0.0.1:{settings().port}"
        try:
            deadline = time.monotonic() + 60
            while not _answers(url):
                if time.monotonic() > deadline:
                    raise SessionError(f"the API does not answer: see {log}")
                time.sleep(0.1)
            yield url, processes[0].pid
        finally:
            for process in processes:
                process.terminate()
                process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").is_success
    except httpx.TransportError:
        return False


def accept(url: str, pid: int, source: Path) -> dict[str, float]:
    """Upload a file, make a batch of it, wait until it is read; return seconds, memory and polls."""
    before = psutil.Process(pid).memory_info().rss
    with httpx.Client(base_url=url, timeout=READ_SECONDS) as client, Watch(url, pid) as watch:
        made = client.get("/v1/batches", params={"limit": 1}).json()["data"]
        if made:
            watch.path = f"/v1/batches/{made[0]['id']}"
        started = time.perf_counter()
        with source.open("rb") as file:
            answer = client.post("/v1/files", data={"purpose": "batch"}, files={"file": file})
        answer.raise_for_status()
        uploaded = time.perf_counter()
        creation = {
            "input_file_id": answer.json()["id"],
            "endpoint": "/v1/completions",
            "completion_window": "24h",
        }
        batch = client.post("/v1/batches", json=creation).raise_for_status().json()
        durable = time.perf_counter()
        watch.path = f"/v1/batches/{batch['id']}"
        while _status(client, batch["id"]) == "validating":
            if time.perf_counter() - started > READ_SECONDS:
                raise SessionError("the file was not read in time")
            time.sleep(0.05)
        ended = time.perf_counter()
    ordered = sorted(watch.seconds)
    return {
        "upload_s": uploaded - started,
        "durable_s": durable - started,
        "accept_s": ended - started,
        "rss_mb": (watch.peak - before) / 2**20,
        "peak_mb": watch.peak / 2**20,
        "poll_p99_ms": ordered[int(len(ordered) * 0.99)] * 1000,
        "polls": len(ordered),
    }


def _status(client: httpx.Client, batch_id: str) -> str:
    return str(client.get(f"/v1/batches/{batch_id}").raise_for_status().json()["status"])


def claim_p99_ms(store: Store) -> float:
    """Return the 99th percentile of claiming and releasing a shard, each a transaction; claims only count."""
    with store.engine.connect() as connection:
        ready = "SELECT id FROM shards WHERE state = 'ready' ORDER BY priority DESC, id"
        shard_ids = connection.exec_driver_sql(ready).scalars().fetchmany(NUM_CLAIMS)
    seconds = []
    for shard_id in shard_ids:
        started = time.perf_counter()
        with store.transaction() as session:
            held = shards.claim(session, shard_id, worker="bench", lease=timedelta(seconds=60))
        seconds.append(time.perf_counter() - started)
        if held is None:
            raise SessionError(f"shard {shard_id} could not be claimed")
        with store.transaction() as session:
            shards.release(session, held)
    return sorted(seconds)[int(len(seconds) * 0.99)] * 1000


def clear(store: Store) -> None:
    """Empty the tables that grow, so that each size is measured alone."""
    with store.engine.begin() as connection:
        connection.exec_driver_sql("TRUNCATE batches, requests, results CASCADE")


def main() -> int:
    """Measure everything once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", type=int, default=LARGE, help="requests of the large file")
    arguments = parser.parse_args()
    choose_ports()
    config = settings()
    config.data_dir.mkdir(parents=True, exist_ok=True)
    store = Store(config.database_url, pool_size=2)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=config.data_dir) as directory:
        source = Path(directory) / "in.jsonl"
        with service(config.data_dir / "big_batches.log") as (url, pid):
            clear(store)
            write_input(source, 500)
            accept(url, pid, source)  # everything is loaded now
            for name, count in (("50k", SMALL), ("100k", CLAIM_SIZES[0]), ("1m", arguments.large)):
                clear(store)
                write_input(source, count)
                found = accept(url, pid, source)
                print(name, {key: round(value, 2) for key, value in found.items()}, flush=True)
                figures[name] = found
                if name != "50k":
                    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                        connection.exec_driver_sql("ANALYZE")
                    figures[f"claim_{name}"] = claim_p99_ms(store)
    store.close()
    summary = {
        "accept_50k_s": round(figures["50k"]["accept_s"], 2),
        "durable_50k_s": round(figures["50k"]["durable_s"], 2),
        "accept_50k_rss_mb": round(figures["50k"]["rss_mb"], 1),
        "accept_1m_s": round(figures["1m"]["accept_s"], 1),
        "accept_1m_rss_mb": round(figures["1m"]["peak_mb"], 1),
        "poll_p99_ms": round(max(figures[name]["poll_p99_ms"] for name in ("50k", "1m")), 1),
        "claim_p99_ms_100k": round(figures["claim_100k"], 2),
        "claim_p99_ms_1m": round(figures["claim_1m"], 2),
    }
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
