"""Compares batch policies on embeddings that arrive beside generation.

    python -m benchmarks.readings --model DIR [--policy NAME ...] [--readings N] [--rate N] [--generation N]

Texts of random tokens and ragged lengths arrive at random times (the same for every policy) while
`--generation` requests decode. Every fourth text has a higher priority. With `--rate 0`, all arrive at once.
Prints one JSON line per policy: the total seconds, and the latency of readings from arrival to vector.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worker.engine.engine import Engine
from worker.engine.requests.batch_policy import POLICIES, batch_policy
from worker.engine.requests.config import DTYPES, EngineConfig
from worker.engine.requests.embedding import EmbeddingRequest
from worker.engine.requests.errors import EngineError
from worker.engine.requests.generation import GenerationRequest
from worker.engine.requests.stats import ModelInfo
from worker.values.requests import EmbeddingParams, Pooling
from worker.values.sampling import SamplingParams

SHORT, LONG = 8, 400  # tokens, drawn evenly on a logarithmic scale
GENERATED = 200  # tokens per generation request beside the readings
URGENT_EVERY = 4


def make_readings(info: ModelInfo, count: int, rate: float) -> list[tuple[float, EmbeddingRequest]]:
    """Return each reading with its time of arrival, in seconds from the start."""
    numbers = random.Random(1)
    longest = min(LONG, info.max_model_len)
    arrives = 0.0
    readings = []
    for index in range(count):
        arrives += numbers.expovariate(rate) if rate else 0.0
        length = max(1, int(SHORT * (longest / SHORT) ** numbers.random()))
        prompt = [numbers.randrange(3, info.vocab_size) for _ in range(length)]
        priority = int(index % URGENT_EVERY == 0)
        readings.append(
            (arrives, EmbeddingRequest(index, prompt, EmbeddingParams(Pooling.MEAN), priority=priority))
        )
    return readings


def run(
    engine: Engine, readings: Sequence[tuple[float, EmbeddingRequest]], generation: int
) -> dict[str, Any]:
    """Run the readings beside generation and return the measurements; raise RuntimeError if one fails."""
    params = SamplingParams(max_tokens=GENERATED, temperature=0.0, ignore_eos=True)
    for index in range(generation):
        engine.add(GenerationRequest(("generation", index), [3 + index] * SHORT, params))
    coming = deque(readings)
    arrived = {request.id: arrives for arrives, request in readings}
    latency: dict[Any, float] = {}
    started = time.perf_counter()
    while coming or engine.has_unfinished:
        now = time.perf_counter() - started
        while coming and coming[0][0] <= now:
            engine.add(coming.popleft()[1])
        wait = engine.wait_seconds
        until_next = coming[0][0] - now if coming else wait
        if wait != 0 and until_next is not None:
            time.sleep(max(0.0, until_next if wait is None else min(wait, until_next)))
        for reading in engine.step().readings:
            if reading.error is not None:
                raise RuntimeError(f"reading {reading.id} failed: {reading.error}")
            latency[reading.id] = time.perf_counter() - started - arrived[reading.id]
    urgent = [value for key, value in latency.items() if key % URGENT_EVERY == 0]
    percentiles = statistics.quantiles(latency.values(), n=100)
    return {
        "seconds": round(time.perf_counter() - started, 4),
        "median_s": round(percentiles[49], 4),
        "p99_s": round(percentiles[98], 4),
        "urgent_median_s": round(statistics.median(urgent), 4),
        "steps": engine.stats.steps,
    }


def measure(config: EngineConfig, count: int, rate: float, generation: int) -> dict[str, Any]:
    """Return the result of one policy, after a warm-up on other tokens."""
    engine = Engine(config)
    readings = make_readings(engine.model_info, count, rate)
    run(engine, [(0.0, request) for _, request in readings[: count // 4 + 2]], 1)
    engine.stats.steps = 0
    return run(engine, readings, generation)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face checkpoint directory")
    parser.add_argument("--policy", nargs="+", choices=POLICIES, help="default: each, the engine's own first")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--threads", type=int, default=None, help="default: torch's own choice")
    parser.add_argument("--readings", type=int, default=200)
    parser.add_argument("--rate", type=float, default=0.0, help="readings a second; 0: all at once")
    parser.add_argument("--generation", type=int, default=8, help="requests that decode meanwhile")
    options = parser.parse_args(arguments)
    if options.readings < 8 or options.rate < 0 or options.generation < 0:
        parser.error("--readings must be at least 8, --rate and --generation at least 0")
    for name in options.policy or POLICIES:
        try:
            config = EngineConfig(
                options.model,
                dtype=options.dtype,
                num_threads=options.threads,
                batch_policy=batch_policy(name),
            )
            result = measure(config, options.readings, options.rate, options.generation)
        except (EngineError, RuntimeError) as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 2
        print(json.dumps({"policy": name} | result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
