r"""Measures how long unlike workers take for one batch: `python -m benchmarks.tail [--requests N]`.

Outputs have lengths as they occur: most are short, some are 50 times as long. Simulated workers run the
batch, with the real scheduler and without a model, by three rules for its end: each takes what it can; a slow
one leaves and gives back the last shards; an idle one also backs up slow ones. First the workers are unlike.
Then they are equal, and one becomes slow, which the costs that it reports do not show. Time comes from
assumed costs of Steps, so every machine with one version of Python finds the same. The last line is JSON.
"""

import argparse
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from benchmarks.simulated_engines import COSTS, MAX_ROWS, BatchFigures, Workers, run
from worker.store.requests.requests import NewRequest
from worker.values.step_costs import StepCosts

# How many times as long as the fastest each worker takes for a Step.
FLEETS = {2: (1, 10), 4: (1, 1, 3, 10), 8: (1, 1, 1, 1, 2, 3, 5, 10)}
PROMPT_TOKENS = 64
SHORTEST, LONGEST = 8, 2048
MEDIAN, DEVIATION = 60.0, 1.2  # of the outputs' lengths, and of their logarithms
SLOWED_AT, SLOWED_TO = 10.0, 20.0  # after so many seconds, it takes so many times as long
RULES = ("takes", "leaves", "backs_up")


def slower(factor: float) -> StepCosts:
    """Return the costs of a worker that takes so many times as long."""
    return StepCosts(
        **{name: factor * value for name, value in asdict(COSTS).items()} | {"max_rows": MAX_ROWS}
    )


def batch(num_requests: int) -> tuple[list[NewRequest], list[list[int]]]:
    """Return requests with lengths of outputs as they occur, and the tokens of their prompts."""
    numbers = random.Random("tail")
    lengths = (round(MEDIAN * numbers.lognormvariate(0, DEVIATION)) for _ in range(num_requests))
    given = [NewRequest("", min(LONGEST, max(SHORTEST, length))) for length in lengths]
    return given, [[10_000 * i + j for j in range(PROMPT_TOKENS)] for i in range(num_requests)]


def measure(num_requests: int, fleet: Workers) -> dict[str, Any]:
    """Run the batch by each rule; return the seconds, and the share of tokens that were generated twice."""
    given, prompts = batch(num_requests)
    places = list(range(num_requests))
    shards = [places[start : start + fleet.shard_size] for start in range(0, num_requests, fleet.shard_size)]
    found: dict[str, BatchFigures] = {}
    for rule in RULES:
        its = replace(fleet, leaves_tail=rule != "takes", backs_up=rule == "backs_up")
        found[rule] = run(given, prompts, shards, its)
    seconds = {rule: round(one.seconds, 1) for rule, one in found.items()}
    return seconds | {"twice": round(found["backs_up"].twice, 4)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=1000, help="of the batch")
    parser.add_argument("--shard-size", type=int, default=16)
    parser.add_argument("--shards-in-flight", type=int, default=4, help="of each worker")
    parser.add_argument("--kv-tokens", type=int, default=131_072, help="of each worker's cache")
    options = parser.parse_args(arguments)
    if min(vars(options).values()) < 1 or options.kv_tokens < 8192:
        parser.error("every number must be at least 1, and --kv-tokens at least 8192")
    found: dict[str, Any] = {"requests": options.requests}
    for count, factors in FLEETS.items():
        costs = tuple(slower(factor) for factor in factors)
        fleet = Workers(costs, options.shard_size, options.shards_in_flight, options.kv_tokens)
        unlike = measure(options.requests, fleet)
        equal = replace(fleet, costs=(COSTS,) * count)
        slowed = measure(options.requests, replace(equal, slowed=(0, SLOWED_AT, SLOWED_TO)))
        found[f"workers_{count}"] = {"unlike": unlike, "slowed": slowed}
        print(f"{count} workers: {json.dumps(found[f'workers_{count}'])}", flush=True)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
