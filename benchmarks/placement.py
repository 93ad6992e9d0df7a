r"""Measures what the placement of requests gains: `python -m benchmarks.placement [--requests N]`.

Three batches are generated, with requests in random order: `faq`, questions behind one of many instructions;
`turns`, each turn of many conversations with the turns before it; `table`, rows with repeated values. Each is
cut into shards in the order of its lines, and by the placement of the service. Simulated workers run both,
with the real scheduler and prefix cache and without a model. Time comes from assumed costs of Steps, so every
machine with one version of Python finds the same. The last line is JSON.
"""

import argparse
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tokenizers import Tokenizer

from api.files.reading import CHUNK_LINES, MAX_CHUNK_LINES
from api.table_fields import order_fields
from benchmarks.simulated_engines import COSTS, BatchFigures, Workers, run
from benchmarks.workloads import read_sources
from worker.settings import DEMO_MODEL
from worker.store.requests.placement import Placement
from worker.store.requests.requests import NewRequest

LONG_TOKENS, SHORT_TOKENS = 256, 16


def faq(numbers: random.Random, text: Callable[[int], str], num_requests: int) -> list[NewRequest]:
    """Return questions behind 200 instructions, of which one in ten asks for long outputs."""
    instructions = [(text(2400), SHORT_TOKENS if i % 10 else LONG_TOKENS) for i in range(200)]
    chosen = (numbers.choice(instructions) for _ in range(num_requests))
    return [NewRequest(f"{instruction}\n\n{text(120)}", max_tokens) for instruction, max_tokens in chosen]


def turns(numbers: random.Random, text: Callable[[int], str], num_requests: int) -> list[NewRequest]:
    """Return each of ten turns of conversations, in random order."""
    found = []
    for _ in range(-(-num_requests // 10)):
        history = ""
        for _ in range(10):
            history += text(400)
            found.append(NewRequest(history, 64))
    numbers.shuffle(found)
    return found[:num_requests]


def table(
    numbers: random.Random, text: Callable[[int], str], num_requests: int, *, reorders: bool
) -> list[NewRequest]:
    """Return rows of a table of reviews, joined with their products, as JSON objects."""
    products = [
        {"product": text(30), "description": text(900), "category": f"category {i % 12}"}
        for i in range(max(1, num_requests // 20))
    ]
    rows = [
        {"review": text(200), "stars": str(numbers.randint(1, 5)), **numbers.choice(products)}
        for _ in range(num_requests)
    ]
    fields = [
        {name: f"{json.dumps(name)}: {json.dumps(value)}" for name, value in row.items()} for row in rows
    ]
    orders = order_fields(fields) if reorders else [list(row) for row in fields]
    asked = "Does the review fit the product? Answer yes or no. "
    return [
        NewRequest(f"{asked}{{{', '.join(row[name] for name in order)}}}", SHORT_TOKENS)
        for row, order in zip(fields, orders, strict=True)
    ]


def in_order(given: Sequence[NewRequest], size: int) -> list[list[int]]:
    """Cut requests into shards in the order of their lines."""
    indices = list(range(len(given)))
    return [indices[start : start + size] for start in range(0, len(indices), size)]


def placed(given: Sequence[NewRequest], size: int) -> list[list[int]]:
    """Cut requests into shards as the service does while it reads a file."""
    shards: list[list[int]] = []
    start = 0
    while start < len(given):
        chunk = given[start : start + max(CHUNK_LINES, min(start, MAX_CHUNK_LINES))]
        placement = Placement(size)
        indices = placement.place_all(chunk, [None] * len(chunk), [0] * len(chunk))
        new: list[list[int]] = [[] for _ in placement.shards]
        for index, shard in enumerate(indices, start):
            new[shard].append(index)
        shards += new
        start += len(chunk)
    return shards


def batches(num_requests: int) -> Iterator[tuple[str, list[NewRequest], list[NewRequest]]]:
    """Yield each batch with its name, as it comes and with its fields in order; the same every time."""
    source = "\n".join(read_sources())
    for name in ("faq", "turns", "table"):
        variants = []
        for reorders in (False, True):
            numbers = random.Random(name)

            def text(length: int, numbers: random.Random = numbers) -> str:
                at = numbers.randrange(len(source) - length)
                return source[at : at + length]

            if name == "table":
                variants.append(table(numbers, text, num_requests, reorders=reorders))
            else:
                variants.append((faq if name == "faq" else turns)(numbers, text, num_requests))
        yield name, variants[0], variants[1]


def measure(num_requests: int, fleet: Workers) -> dict[str, dict[str, float]]:
    """Run every batch before and after; return shares from the cache and the ratio of the times."""
    found = {}
    for name, as_given, reordered in batches(num_requests):
        figures: dict[str, BatchFigures] = {}
        for side, given, cut in (
            ("before", as_given, in_order),
            ("placed", as_given, placed),
            ("after", reordered, placed),
        ):
            if side == "after" and reordered == as_given:
                figures[side] = figures["placed"]
                continue
            figures[side] = run(given, encode(given), cut(given, fleet.shard_size), fleet)
            print(
                f"{name:>8} {side:>8}: {figures[side].cached:.3f} from cache, {figures[side].seconds:.1f} s"
            )
        found[name] = {
            "cached_before": round(figures["before"].cached, 3),
            "cached_placed": round(figures["placed"].cached, 3),
            "cached_after": round(figures["after"].cached, 3),
            "makespan_ratio": round(figures["after"].seconds / figures["before"].seconds, 3),
        }
    return found


def encode(given: Sequence[NewRequest]) -> list[list[int]]:
    """Return the tokens of each prompt."""
    tokenizer = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    return [one.ids for one in tokenizer.encode_batch_fast([request.prompt for request in given])]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000, help="in each batch")
    parser.add_argument("--workers", type=int, default=4, help="that run it")
    parser.add_argument("--shard-size", type=int, default=64)
    parser.add_argument("--shards-in-flight", type=int, default=10, help="of each worker")
    parser.add_argument("--kv-tokens", type=int, default=131_072, help="of each worker's cache")
    options = parser.parse_args(arguments)
    if min(vars(options).values()) < 1 or options.kv_tokens < 8192:
        parser.error("every number must be at least 1, and --kv-tokens at least 8192")
    costs = (COSTS,) * options.workers
    fleet = Workers(costs, options.shard_size, options.shards_in_flight, options.kv_tokens)
    found: dict[str, Any] = {"requests": options.requests, **measure(options.requests, fleet)}
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
