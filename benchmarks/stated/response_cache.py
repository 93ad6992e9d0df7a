"""Measures the response cache in the whole service: batches of which a share was answered before."""

import sys
from datetime import datetime
from typing import Any

import httpx

from api.cli.session import choose_ports, session
from benchmarks.service import Item, workload
from benchmarks.stated.figures import MeasuredFigure
from benchmarks.stated.setup import Setup
from worker.settings import settings

PROCESSES = ("web", "gpu", "dispatcher")
HIT_RATES = (0.0, 0.5, 0.9, 0.99)
NUM_REQUESTS = 720  # so that the tenth that is not answered still fills a Step of 64 Sequences
WAIT_SECONDS = 5


def response_cache(_: Setup) -> dict[str, MeasuredFigure]:
    """Run batches with `cache: exact`, of which a given share of the requests was answered before."""
    choose_ports()
    found: dict[float, dict[str, float]] = {}
    with session(settings().data_dir / "stated.log", PROCESSES) as client:
        run(client, workload(32, turn=-1))
        for turn, hit_rate in enumerate(HIT_RATES):
            found[hit_rate] = run(client, partly_answered(turn, hit_rate))
            print(f"hit rate {hit_rate:g}: {found[hit_rate]}", file=sys.stderr)
    whole = found[0.0]
    savings = {
        str(rate): {name: round(1 - one[name] / whole[name], 4) for name in ("device_seconds", "seconds")}
        for rate, one in found.items()
    }
    return {"response_cache": MeasuredFigure(savings["0.9"]["device_seconds"], {"by_hit_rate": savings})}


def partly_answered(turn: int, hit_rate: float) -> list[Item]:
    """Return the requests of a turn, a share of them those of turn 0, which ran first and was answered.

    The outputs of the rest are as long, on average.
    """
    known, items = workload(NUM_REQUESTS, 0), workload(NUM_REQUESTS, turn)
    ranked = sorted(range(NUM_REQUESTS), key=lambda place: items[place].max_tokens)
    for rank, place in enumerate(ranked):
        if int((rank + 1) * hit_rate) > int(rank * hit_rate):
            items[place] = known[place]
    return items


def run(client: httpx.Client, items: list[Item]) -> dict[str, float]:
    """Run a batch to its end; return its device seconds, and its time from acceptance to end."""
    body: dict[str, Any] = {
        "requests": [{"prompt": item.prompt, "max_tokens": item.max_tokens} for item in items],
        "temperature": 0,
        "ignore_eos": True,
        "cache": "exact",
    }
    batch = client.post("/v1/batch/async", json=body).raise_for_status().json()["batch_id"]
    seen = 0
    while True:
        page = client.get(
            f"/v1/batch/{batch}/results", params={"after": seen, "limit": 1000, "wait": WAIT_SECONDS}
        )
        seen = page.raise_for_status().json()["next"] or seen
        answer = client.get(f"/v1/batch/{batch}").raise_for_status().json()
        if answer["finished_at"] is not None:
            break
    if answer["counts"]["completed"] != len(items):
        raise RuntimeError(f"the batch did not complete: {answer['counts']}")
    created, finished = (datetime.fromisoformat(answer[name]) for name in ("created_at", "finished_at"))
    device = answer["usage"]["device_seconds"]["total"]
    return {
        "device_seconds": device,
        "seconds": (finished - created).total_seconds(),
        "cached": answer["cached"],
    }
