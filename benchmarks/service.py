"""Compares the whole service, from HTTP request to webhook, with the bare engine: `make bench`.

Both sides run the same fixed ragged workload (greedy, end tokens ignored) in turns, on the same model with
the same engine settings. Each turn has different prompts, so that no prefix cache carries over. The service's
processes are up, and idle, while the bare engine runs. Prints medians; the last line is JSON.
"""

import argparse
import json
import math
import random
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

import httpx

from api.cli.receiver import receiver
from api.cli.session import SessionError, choose_ports, session
from worker.engine.engine import Engine
from worker.engine.engine_thread import EngineThread
from worker.engine.requests.generation import GenerationRequest
from worker.settings import DEMO_MODEL, settings
from worker.tasks.engine_config import engine_config
from worker.values.sampling import SamplingParams

PROCESSES = ("web", "gpu", "callbacks", "dispatcher", "flower")
PROMPT_CHARACTERS = (40, 1500)
OUTPUT_TOKENS = (16, 128)
WAIT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Item:
    """One request of the workload."""

    prompt: str
    max_tokens: int


def workload(num_requests: int, turn: int) -> list[Item]:
    """Return the ragged workload of a turn.

    Prompt lengths are log-uniform and output lengths uniform; both are the same in every turn.
    """
    text = (DEMO_MODEL / "heldout.txt").read_text("utf-8")
    draw = random.Random(7)
    shortest, longest = PROMPT_CHARACTERS
    items = []
    for _ in range(num_requests):
        length = round(math.exp(draw.uniform(math.log(shortest), math.log(longest))))
        start = draw.randrange(len(text) - longest)
        items.append(Item(f"# {turn}\n{text[start : start + length]}", draw.randint(*OUTPUT_TOKENS)))
    return items


def run_engine(engine: EngineThread, items: list[Item]) -> float:
    """Return the seconds the bare engine takes."""
    requests = [
        GenerationRequest(i, item.prompt, SamplingParams(item.max_tokens, temperature=0, ignore_eos=True))
        for i, item in enumerate(items)
    ]
    started = time.perf_counter()
    work = engine.submit(requests)
    while not work.is_done:
        work.take(timeout=1.0, least=len(items))
    return time.perf_counter() - started


def run_service(client: httpx.Client, secret: str, items: list[Item]) -> float:
    """Return the seconds from the POST to the verified webhook."""
    body: dict[str, Any] = {
        "requests": [{"prompt": item.prompt, "max_tokens": item.max_tokens} for item in items],
        "temperature": 0,
        "ignore_eos": True,
    }
    with receiver(secret) as received:
        started = time.perf_counter()
        client.post("/v1/batch/async", json=body | {"callback_url": received.url}).raise_for_status()
        event = received.wait(WAIT_SECONDS)
        seconds = time.perf_counter() - started
    if event is None or event["data"]["counts"]["completed"] != len(items):
        raise SessionError(f"the batch did not complete: {event}")
    if event["data"]["usage"]["output_tokens"] != sum(item.max_tokens for item in items):
        raise SessionError("the service generated another number of tokens than the engine")
    return seconds


def main() -> int:
    """Run the turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--turns", type=int, default=6)
    arguments = parser.parse_args()
    choose_ports()
    config = settings()
    if not config.webhook_secrets:
        parser.error("run it under `python -m worker.embedded`, as `make bench` does")
    engine = EngineThread(lambda: Engine(engine_config(config)))
    engine.start()
    engine_rates, service_rates = [], []
    with session(config.data_dir / "bench.log", PROCESSES) as client:
        secret = config.webhook_secrets[0]
        run_engine(engine, workload(32, turn=-1))
        run_service(client, secret, workload(32, turn=-2))
        for turn in range(arguments.turns):
            items = workload(arguments.requests, turn)
            tokens = sum(item.max_tokens for item in items)
            # The side that goes first alternates, so that a machine that slows down favours neither.
            if turn % 2:
                service_rates.append(tokens / run_service(client, secret, items))
                engine_rates.append(tokens / run_engine(engine, items))
            else:
                engine_rates.append(tokens / run_engine(engine, items))
                service_rates.append(tokens / run_service(client, secret, items))
            print(f"turn {turn}: engine {engine_rates[-1]:.0f} tok/s, service {service_rates[-1]:.0f} tok/s")
    engine.stop()
    bare, whole = statistics.median(engine_rates), statistics.median(service_rates)
    ratio = statistics.median(s / e for s, e in zip(service_rates, engine_rates, strict=True))
    summary = {"engine_tok_s": round(bare, 1), "service_tok_s": round(whole, 1), "ratio": round(ratio, 4)}
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
