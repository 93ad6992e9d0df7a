"""Times a large input file: `python -m worker.embedded python -m benchmarks.ingestion --requests 50000`.

WARNING: it empties the database of the data directory. The API and the files process are real and use the
embedded Postgres; no engine runs. The last line is JSON.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from api.cli.session import SessionError, choose_ports
from benchmarks.claims import NUM_CLAIMS, claim_ms
from benchmarks.polling import Polls, percentile_ms
from worker.settings import DEMO_MODEL, settings
from worker.store.database.session import Store
from worker.up import ROOT, read_procfile, start

MAX_REQUESTS, MAX_FILE_BYTES = 2_000_000, 4 << 30
READ_SECONDS = 1800.0
WARM_UP = 500
ENDPOINTS = "/v1/completions", "/v1/chat/completions"
NUM_BODIES = 4096  # distinct bodies; further requests differ only in their custom_id


def write_input(path: Path, count: int, endpoint: str) -> None:
    """Write requests with 200 to 600 characters of the held-out text; of a chat, after a system message."""
    text = (DEMO_MODEL / "heldout.txt").read_text("utf-8")
    rests = []
    for i in range(min(count, NUM_BODIES)):
        at = (i * 7919) % (len(text) - 600)
        prompt = text[at : at + 200 + i * 31 % 400]
        body: dict[str, Any] = {"model": DEMO_MODEL.name, "max_tokens": 64, "temperature": 0.7}
        if endpoint == ENDPOINTS[0]:
            body["prompt"] = prompt
        else:
            texts = {"system": "Complete the text.", "user": prompt}
            body["messages"] = [{"role": role, "content": text} for role, text in texts.items()]
        rests.append(json.dumps({"method": "POST", "url": endpoint, "body": body})[1:])
    with path.open("w") as file:
        for i in range(count):
            file.write(f'{{"custom_id": "row-{i}", {rests[i % NUM_BODIES]}\n')


@contextmanager
def service(log: Path) -> Iterator[tuple[str, dict[str, int]]]:
    """Run the API and the files process; yield the API's address and their process ids."""
    commands = read_procfile(ROOT / "Procfile")
    environment = os.environ | {
        "HEADRACE_MAX_REQUESTS_PER_BATCH": str(MAX_REQUESTS),
        "HEADRACE_MAX_FILE_BYTES": str(MAX_FILE_BYTES),
    }
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        if start(commands["release"], output=output).wait():
            raise SessionError(f"the migrations failed: see {log}")
        processes = {
            name: start(commands[name], output=output, environment=environment) for name in ("web", "files")
        }
        url = f"http://127.0.0.1:{settings().port}"
        try:
            deadline = time.monotonic() + 60
            while not _answers(url):
                if time.monotonic() > deadline:
                    raise SessionError(f"the API does not answer: see {log}")
                time.sleep(0.1)
            yield url, {name: process.pid for name, process in processes.items()}
        finally:
            for process in processes.values():
                process.terminate()
                process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").is_success
    except httpx.TransportError:
        return False


def accept(url: str, source: Path, endpoint: str, polls: Polls | None = None) -> dict[str, Any]:
    """Upload a file, create a batch of it and wait until it is read; return the batch's id and the times."""
    with httpx.Client(base_url=url, timeout=READ_SECONDS) as client:
        started = time.perf_counter()
        with source.open("rb") as file:
            answer = client.post("/v1/files", data={"purpose": "batch"}, files={"file": file})
        answer.raise_for_status()
        uploaded = time.perf_counter()
        creation = {
            "input_file_id": answer.json()["id"],
            "endpoint": endpoint,
            "completion_window": "24h",
        }
        batch = client.post("/v1/batches", json=creation).raise_for_status().json()
        durable = time.perf_counter()
        path = f"/v1/batches/{batch['id']}"
        if polls is not None:
            polls.poll(path)
        while (status := client.get(path).raise_for_status().json()["status"]) == "validating":
            if time.perf_counter() - started > READ_SECONDS:
                raise SessionError("the file was not read in time")
            time.sleep(0.05)
        ended = time.perf_counter()
    if status != "in_progress":
        raise SessionError(f"{batch['id']} is {status}")
    return {
        "batch_id": batch["id"],
        "upload_s": uploaded - started,
        "durable_s": durable - started,
        "accept_s": ended - started,
    }


def measure(store: Store, count: int, endpoint: str = ENDPOINTS[0]) -> dict[str, Any]:
    """Submit a file of `count` requests and claim some of its shards; return the measurements."""
    config = settings()
    with (
        tempfile.TemporaryDirectory(dir=config.data_dir) as directory,
        service(config.data_dir / "ingestion.log") as (url, pids),
    ):
        source = Path(directory) / "in.jsonl"
        write_input(source, WARM_UP, endpoint)
        warm = accept(url, source, endpoint)["batch_id"]  # loads everything before the measurement
        write_input(source, count, endpoint)
        with store.engine.begin() as connection:
            connection.exec_driver_sql("TRUNCATE requests, results, shards CASCADE")
        before = {name: _forget_peak(pid) for name, pid in pids.items()}
        with Polls(url) as polls:
            polls.poll(f"/v1/batches/{warm}")
            found = accept(url, source, endpoint, polls)
        peak = {name: _status_mb(pid, "VmHWM") for name, pid in pids.items()}
        num_rows = _num_rows(store, found["batch_id"])
        if num_rows != count:
            raise SessionError(f"{count} requests were accepted and {num_rows} are there")
        claims = claim_ms(store) if count >= NUM_CLAIMS * config.shard_sizes[0] else {}
    return {
        "requests": count,
        **{name: round(found[name], 2) for name in ("upload_s", "durable_s", "accept_s")},
        "rss_growth_mb": round(peak["web"] - before["web"], 1),
        "rss_mb": round(peak["web"], 1),
        "files_rss_mb": round(peak["files"], 1),
        "polls": len(polls.seconds),
        "poll_p50_ms": percentile_ms(polls.seconds, 50),
        "poll_p99_ms": percentile_ms(polls.seconds, 99),
        **claims,
    }


def _num_rows(store: Store, batch_id: str) -> int:
    query = "SELECT count(DISTINCT position) FROM requests WHERE batch_id = %s"
    with store.engine.connect() as connection:
        return int(connection.exec_driver_sql(query, (batch_id,)).scalar_one())


def _status_mb(pid: int, field: str) -> float:
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines[field].split()[0]) / 1024


def _forget_peak(pid: int) -> float:
    """Reset the peak of a process's memory; return its memory now, in MiB."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _status_mb(pid, "VmRSS")


def main(arguments: list[str] | None = None) -> int:
    """Measure one file size and print it; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--endpoint", choices=ENDPOINTS, default=ENDPOINTS[0])
    options = parser.parse_args(arguments)
    if not 0 < options.requests <= MAX_REQUESTS:
        parser.error(f"--requests must be from 1 to {MAX_REQUESTS}")
    choose_ports()
    config = settings()
    config.data_dir.mkdir(parents=True, exist_ok=True)
    store = Store(config.database_url, pool_size=2)
    try:
        print(json.dumps(measure(store, options.requests, options.endpoint)))
    except (SessionError, httpx.HTTPError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    finally:
        store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
