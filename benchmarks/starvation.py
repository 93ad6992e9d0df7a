"""Times a small batch and an urgent one behind a backlog of the same tenant.

    python -m benchmarks.starvation [--model DIR] [--backlog 2000] [--small 2] [--low 1280] [--high 64]

The whole service runs, with API keys, for one tenant. A batch of `--small` requests runs alone three times,
then behind a backlog of `--backlog` requests of the same priority that fills the engine. Then a batch of
`--high` requests of priority 5 runs alone, and behind `--low` requests of priority 0. The last line is JSON:
seconds from the POST to the first tokens seen and to the end, by polls 50 ms apart.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from api.cli.session import SessionError
from benchmarks.fairness import requests, wait_for_settled
from benchmarks.tenants import ENDED, client_of, deployed, view, wait

TENANT = "one"
POLL_SECONDS = 0.05
TIMES_ALONE = 3
HIGH = 5


@dataclass(frozen=True, slots=True)
class Timed:
    """The times of one batch, in seconds after its POST."""

    tokens: float  # the first ones
    end: float


def send(client: httpx.Client, count: int, name: str, *, priority: int = 0) -> str:
    """Submit a batch whose requests run to their max_tokens; return its id."""
    body = {"requests": requests(count, name), "temperature": 0, "ignore_eos": True, "priority": priority}
    return str(client.post("/v1/batch/async", json=body).raise_for_status().json()["batch_id"])


def timed(client: httpx.Client, count: int, name: str, *, priority: int = 0) -> Timed:
    """Run a batch to its end and poll it meanwhile; raise SessionError if it does not complete."""
    started = time.perf_counter()
    batch_id = send(client, count, name, priority=priority)
    first: float | None = None
    while True:
        batch = view(client, batch_id)
        seconds = time.perf_counter() - started
        if first is None and batch["tokens"]["done"]:
            first = seconds
        if batch["status"] in ENDED:
            break
        time.sleep(POLL_SECONDS)
    if batch["counts"]["completed"] != count or first is None:
        raise SessionError(f"the batch did not complete: {batch['counts']}")
    return Timed(first, seconds)


def alone(client: httpx.Client, count: int, name: str, *, priority: int = 0) -> Timed:
    """Return the medians of several runs on an otherwise idle service."""
    runs = [timed(client, count, f"{name} alone {i}", priority=priority) for i in range(TIMES_ALONE)]
    return Timed(statistics.median(run.tokens for run in runs), statistics.median(run.end for run in runs))


@contextmanager
def backlog(client: httpx.Client, count: int, name: str, *, ahead: int) -> Iterator[str]:
    """Submit a batch of priority 0 and wait until it fills the engine; cancel what is left at the end."""
    batch_id = send(client, count, name)
    try:
        wait_for_settled(client, batch_id, ahead)
        yield batch_id
    finally:
        client.post(f"/v1/batch/{batch_id}/cancel").raise_for_status()
        wait(client, batch_id, stall_seconds=float("inf"))


def main(arguments: list[str] | None = None) -> int:
    """Run both measurements and print the times; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=None, help="default: HEADRACE_MODEL, else the demo's")
    parser.add_argument("--backlog", type=int, default=2000, help="requests before the small batch")
    parser.add_argument("--small", type=int, default=2, help="requests of the small batch")
    parser.add_argument("--low", type=int, default=1280, help="requests of priority 0 before that of 5")
    parser.add_argument("--high", type=int, default=64, help=f"requests of the batch of priority {HIGH}")
    options = parser.parse_args(arguments)
    if min(options.backlog, options.small, options.low, options.high) < 1:
        parser.error("--backlog, --small, --low and --high must be at least 1")
    try:
        with deployed(options.model, TENANT) as tenants, client_of(tenants.headers[TENANT]) as client:
            timed(client, 8, "warm-up")
            small_alone = alone(client, options.small, "small")
            with backlog(client, options.backlog, "backlog", ahead=min(16, options.backlog)) as batch_id:
                small = timed(client, options.small, "small behind")
                left = options.backlog - view(client, batch_id)["counts"]["completed"]
            print(f"small: {small_alone} alone, {small} behind {options.backlog}", flush=True)
            high_alone = alone(client, options.high, "high", priority=HIGH)
            with backlog(client, options.low, "low", ahead=min(16, options.low)) as batch_id:
                high = timed(client, options.high, "high behind", priority=HIGH)
                low_left = options.low - view(client, batch_id)["counts"]["completed"]
            print(f"high: {high_alone} alone, {high} behind {options.low}", flush=True)
    except (SessionError, httpx.HTTPError, TimeoutError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    limit = 3 * small_alone.end + 2
    print(
        json.dumps(
            {
                "small": options.small,
                "backlog": options.backlog,
                "small_alone_tokens_s": round(small_alone.tokens, 2),
                "small_alone_s": round(small_alone.end, 2),
                "small_tokens_s": round(small.tokens, 2),
                "small_s": round(small.end, 2),
                "small_limit_s": round(limit, 2),
                "small_in_time": small.end <= limit,
                "backlog_left": left,
                "high": options.high,
                "low": options.low,
                "high_alone_tokens_s": round(high_alone.tokens, 2),
                "high_alone_s": round(high_alone.end, 2),
                "high_tokens_s": round(high.tokens, 2),
                "high_s": round(high.end, 2),
                "low_left": low_left,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
