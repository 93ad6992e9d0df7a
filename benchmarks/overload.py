"""Measures answers and completions while submissions arrive faster than the deployment can sustain.

    python -m benchmarks.overload [--model DIR] [--seconds 60] [--times 10] [--batch 8]

First it measures how many small batches per second are completed from a full queue. Then, as a tenant with a
limit on queued work, it submits at that rate times `--times`, whatever the answers are. Then it waits until
all accepted batches have ended. The last line is JSON.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from api.cli.session import SessionError
from benchmarks.fairness import requests
from benchmarks.tenants import StalledError, client_of, deployed, submit, wait
from worker.settings import settings

CALIBRATION_BATCHES = 24
QUEUED_SECONDS = 10  # of work that the tenant may have queued
CALL_SECONDS = 30.0


@dataclass(slots=True)
class Seen:
    """The answers to all submissions, and the memory of the API meanwhile."""

    statuses: Counter[str] = field(default_factory=Counter)
    accepted: list[str] = field(default_factory=list)
    accept_seconds: list[float] = field(default_factory=list)
    refuse_seconds: list[float] = field(default_factory=list)
    rss_bytes: list[int] = field(default_factory=list)  # of the API's process, once a second
    latest_seconds: float = 0.0  # the worst delay of a submission; large when the machine was full


def api_process() -> psutil.Process:
    """Return the API's process, a descendant of this one."""
    for process in psutil.Process(os.getpid()).children(recursive=True):
        if process.cmdline()[1:] == ["-m", "api"]:
            return process
    raise SessionError("the API's process is not there")


def sustainable_rate(client: httpx.Client, size: int) -> float:
    """Return how many batches per second are completed while others wait."""
    started = time.monotonic()
    ids = [submit(client, requests(size, f"calibration {i}")) for i in range(CALIBRATION_BATCHES)]
    for batch_id in ids:
        wait(client, batch_id)
    return CALIBRATION_BATCHES / (time.monotonic() - started)


async def flood(authorization: str, size: int, *, rate: float, seconds: float) -> Seen:
    """Submit batches at a fixed rate without waiting for answers."""
    seen = Seen()
    api = api_process()
    url = f"http://127.0.0.1:{settings().port}"
    limits = httpx.Limits(max_connections=100)
    headers = {"Authorization": authorization}
    async with httpx.AsyncClient(
        base_url=url, headers=headers, limits=limits, timeout=CALL_SECONDS
    ) as client:
        started = time.monotonic()
        calls = []
        for number in range(int(rate * seconds)):
            late = time.monotonic() - started - number / rate
            seen.latest_seconds = max(seen.latest_seconds, late)
            await asyncio.sleep(max(0.0, -late))
            body = {"requests": requests(size, f"flood {number}"), "temperature": 0, "ignore_eos": True}
            calls.append(asyncio.create_task(_call(client, body, seen)))
            if number % max(1, int(rate)) == 0:
                seen.rss_bytes.append(api.memory_info().rss)
        await asyncio.gather(*calls)
    seen.rss_bytes.append(api.memory_info().rss)
    return seen


async def _call(client: httpx.AsyncClient, body: dict[str, Any], seen: Seen) -> None:
    started = time.monotonic()
    try:
        answer = await client.post("/v1/batch/async", json=body)
    except httpx.HTTPError as error:
        seen.statuses[type(error).__name__] += 1
        return
    seconds = time.monotonic() - started
    seen.statuses[str(answer.status_code)] += 1
    if answer.status_code == 202:
        seen.accepted.append(str(answer.json()["batch_id"]))
        seen.accept_seconds.append(seconds)
    else:
        seen.refuse_seconds.append(seconds)


def summary(
    seen: Seen, ended: list[dict[str, Any]], rate: float, options: argparse.Namespace
) -> dict[str, Any]:
    """Return the result object that is printed."""
    complete = [one["status"] == "completed" and one["counts"]["completed"] == options.batch for one in ended]
    return {
        "sustainable_batches_s": round(rate, 2),
        "offered_batches_s": round(rate * options.times, 2),
        "seconds": options.seconds,
        "offered": seen.statuses.total(),
        "accepted": len(seen.accepted),
        "statuses": dict(seen.statuses),
        "accepted_completed": sum(complete),
        "all_accepted_completed": len(complete) == len(seen.accepted) and all(complete),
        "accept_p50_ms": _percentile(seen.accept_seconds, 50),
        "accept_p99_ms": _percentile(seen.accept_seconds, 99),
        "refuse_p99_ms": _percentile(seen.refuse_seconds, 99),
        "latest_s": round(seen.latest_seconds, 2),
        "rss_start_mb": round(seen.rss_bytes[0] / 2**20, 1),
        "rss_most_mb": round(max(seen.rss_bytes) / 2**20, 1),
        "rss_end_mb": round(seen.rss_bytes[-1] / 2**20, 1),
    }


def _percentile(seconds: list[float], percent: int) -> float | None:
    if len(seconds) < 2:
        return round(1000 * seconds[0], 1) if seconds else None
    return round(1000 * statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1], 1)


def main(arguments: list[str] | None = None) -> int:
    """Run the measurement and print its result; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=None, help="default: HEADRACE_MODEL, else the demo's")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--times", type=float, default=10.0)
    parser.add_argument("--batch", type=int, default=8, help="requests in each")
    options = parser.parse_args(arguments)
    if min(options.seconds, options.times, options.batch) <= 0:
        parser.error("--seconds, --times and --batch must be above 0")
    try:
        with (
            deployed(options.model, "calm", "flood") as tenants,
            client_of(tenants.headers["calm"]) as calm,
            client_of(tenants.headers["flood"]) as client,
        ):
            wait(calm, submit(calm, requests(options.batch, "warm-up")))
            rate = sustainable_rate(calm, options.batch)
            tenants.limit("flood", max_batches=max(1, round(QUEUED_SECONDS * rate)))
            print(f"sustains {rate:.2f} batches of {options.batch} a second", flush=True)
            seen = asyncio.run(
                flood(
                    tenants.headers["flood"],
                    options.batch,
                    rate=rate * options.times,
                    seconds=options.seconds,
                )
            )
            ended = [wait(client, batch_id, stall_seconds=float("inf")) for batch_id in seen.accepted]
    except (SessionError, StalledError, httpx.HTTPError, TimeoutError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    found = summary(seen, ended, rate, options)
    print(json.dumps(found))
    return 0 if found["all_accepted_completed"] else 1


if __name__ == "__main__":
    sys.exit(main())
