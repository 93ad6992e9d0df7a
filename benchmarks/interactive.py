"""Measures the time to first token of interactive requests, idle and under load: `make bench-interactive`.

It streams completions one after another, first on an idle service, then while a large unfinished batch keeps
every row of the engine busy. Each completion has a different prompt, so that no cache serves it. It also
reads the batch's tokens per second with and without the interactive work. The last line is JSON.
"""

import argparse
import json
import random
import statistics
import sys
import time

import httpx

from api.cli.session import SessionError, choose_ports, session
from worker.settings import DEMO_MODEL, settings

PROCESSES = ("web", "gpu", "callbacks", "dispatcher")
PROMPT_CHARACTERS = (100, 600)
WAIT_SECONDS = 120.0


class Prompts:
    """Source of distinct prompts, cut from the held-out text."""

    def __init__(self) -> None:
        self._text = (DEMO_MODEL / "heldout.txt").read_text("utf-8")
        self._draw = random.Random(11)
        self._number = 0

    def next(self) -> str:
        """Return a prompt whose beginning differs from all others."""
        self._number += 1
        start = self._draw.randrange(len(self._text) - PROMPT_CHARACTERS[1])
        length = self._draw.randint(*PROMPT_CHARACTERS)
        return f"# {self._number}\n{self._text[start : start + length]}"


def first_token_seconds(client: httpx.Client, model: str, prompt: str, max_tokens: int) -> float:
    """Read a streamed completion to its end; return the seconds from the POST to its first text."""
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
    started = time.perf_counter()
    first = None
    with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    raise SessionError(chunk["error"]["message"])
                if first is None and any(choice["text"] for choice in chunk["choices"]):
                    first = time.perf_counter() - started
    if first is None:
        raise SessionError("a completion had no text")
    return first


def p95(seconds: list[float]) -> float:
    """Return the 95th percentile in milliseconds."""
    return round(statistics.quantiles(seconds, n=20, method="inclusive")[-1] * 1000, 1)


def tokens_done(client: httpx.Client, batch_id: str) -> int:
    """Return the number of the batch's output tokens so far."""
    answer = client.get(f"/v1/batch/{batch_id}", params={"include": "none"}).json()
    if answer["status"] != "processing":
        raise SessionError(f"the backlog is {answer['status']}: make it larger")
    return int(answer["tokens"]["done"])


def main() -> int:
    """Measure the idle and the loaded service and print both; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=60, help="interactive ones, in each phase")
    parser.add_argument("--max-tokens", type=int, default=16, help="of each")
    parser.add_argument("--pause", type=float, default=0.25, help="seconds between two of them")
    parser.add_argument("--backlog", type=int, default=6000, help="requests of the batch")
    arguments = parser.parse_args()
    choose_ports()
    config = settings()
    prompts, model = Prompts(), config.model.resolve().name

    def measure(client: httpx.Client, count: int) -> list[float]:
        found = []
        for _ in range(count):
            found.append(first_token_seconds(client, model, prompts.next(), arguments.max_tokens))
            time.sleep(arguments.pause)
        return found

    with session(config.data_dir / "bench.log", PROCESSES) as client:
        measure(client, 5)
        idle = measure(client, arguments.requests)
        print(f"idle: p50 {statistics.median(idle) * 1000:.0f} ms, p95 {p95(idle)} ms")
        requests = [{"prompt": prompts.next(), "max_tokens": 128} for _ in range(arguments.backlog)]
        submitted = client.post(
            "/v1/batch/async", json={"requests": requests, "ignore_eos": True, "temperature": 0}
        )
        submitted.raise_for_status()
        batch_id = submitted.json()["batch_id"]
        deadline = time.monotonic() + WAIT_SECONDS
        while not client.get(f"/v1/batch/{batch_id}").json()["counts"]["completed"]:
            if time.monotonic() > deadline:
                raise SessionError("the backlog does not begin")
            time.sleep(0.2)
        started, before = time.perf_counter(), tokens_done(client, batch_id)
        loaded = measure(client, arguments.requests)
        seconds = time.perf_counter() - started
        middle = tokens_done(client, batch_id)
        with_rate = (middle - before) / seconds
        time.sleep(seconds)
        without_rate = (tokens_done(client, batch_id) - middle) / (time.perf_counter() - started - seconds)
        client.post(f"/v1/batch/{batch_id}/cancel").raise_for_status()
    print(f"under a backlog: p50 {statistics.median(loaded) * 1000:.0f} ms, p95 {p95(loaded)} ms")
    summary = {
        "interactive_ttft_p95_idle_ms": p95(idle),
        "interactive_ttft_p95_loaded_ms": p95(loaded),
        "ratio": round(p95(loaded) / p95(idle), 2),
        "batch_tok_s_without": round(without_rate, 1),
        "batch_tok_s_with": round(with_rate, 1),
        "batch_throughput_lost": round(1 - with_rate / without_rate, 4),
    }
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
