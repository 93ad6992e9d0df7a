r"""Measures what the placement of requests gains: `python -m benchmarks.placement [--requests N]`.

Three batches are generated, with requests in random order: `faq`, questions behind one of many instructions;
`turns`, each turn of many conversations with the turns before it; `table`, rows with repeated values. Each is
cut into shards in the order of its lines, and by the placement of the service. Simulated workers run both,
with the real scheduler and prefix cache and without a model. Time comes from assumed costs of Steps, so every
machine finds the same figures. The last line is JSON.
"""

import argparse
import json
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from tokenizers import Tokenizer

from api.files.reading import CHUNK_LINES, MAX_CHUNK_LINES
from api.table_fields import order_fields
from benchmarks.workloads import read_sources
from worker.engine.scheduling.admission import make_admission
from worker.engine.scheduling.batch_gate import BatchGate
from worker.engine.scheduling.block_pool import BlockPool
from worker.engine.scheduling.prefix_cache import PrefixCache
from worker.engine.scheduling.scheduler import Scheduler
from worker.engine.sequences.sequence import Sequence as Tokens
from worker.settings import DEMO_MODEL
from worker.store.requests.placement import Placement
from worker.store.requests.requests import NewRequest
from worker.values.outcomes import FinishReason
from worker.values.sampling import SamplingParams
from worker.values.step_costs import StepCosts

BLOCK_SIZE = 16
MAX_ROWS, MAX_STEP_TOKENS = 256, 8192
# Assumed, of a model of 8 billion parameters on a card of 24 GB.
COSTS = StepCosts(step=8e-3, row=2e-5, token=5e-5, context=2e-9, max_rows=MAX_ROWS)
LONG_TOKENS, SHORT_TOKENS = 256, 16


@dataclass(frozen=True, slots=True)
class Fleet:
    """The simulated workers."""

    num_workers: int
    shard_size: int
    shards_in_flight: int
    kv_tokens: int  # of each worker


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


@dataclass(slots=True, eq=False)
class Worker:
    """A worker with a clock of its own."""

    scheduler: Scheduler
    now: float = 0.0
    left: dict[int, int] = field(default_factory=dict)  # requests without a result, by shard

    def step(self) -> None:
        """Run one Step."""
        plan = self.scheduler.schedule()
        self.scheduler.advance(plan)
        num_rows = len(plan.entries)
        context = sum(entry.start + entry.num_tokens for entry in plan.entries)
        self.now += COSTS.step + COSTS.row * num_rows + COSTS.context * context
        self.now += COSTS.token * (plan.num_tokens - num_rows)
        for entry in plan.entries:
            sequence = entry.sequence
            if not entry.is_sampled:
                continue
            sequence.token_ids.append(len(sequence.token_ids))
            if sequence.num_output_tokens == sequence.params.max_tokens:
                self.scheduler.finish(sequence, FinishReason.LENGTH)
                shard = int(str(sequence.request_id))
                self.left[shard] -= 1
                if not self.left[shard]:
                    del self.left[shard]


def make_scheduler(kv_tokens: int) -> Scheduler:
    """Return the scheduler of an engine with so many tokens of KV cache."""
    pool = BlockPool(kv_tokens // BLOCK_SIZE, PrefixCache())
    admission = make_admission("length-aware", pool, block_size=BLOCK_SIZE, max_model_len=kv_tokens)
    return Scheduler(
        pool,
        admission,
        gate=BatchGate(),
        block_size=BLOCK_SIZE,
        max_num_sequences=MAX_ROWS,
        max_tokens_per_step=MAX_STEP_TOKENS,
    )


def run(
    given: Sequence[NewRequest], prompts: Sequence[list[int]], shards: Sequence[list[int]], fleet: Fleet
) -> tuple[float, float]:
    """Run shards in order; return the share of prompt tokens that came from the cache, and the seconds."""
    workers = [Worker(make_scheduler(fleet.kv_tokens)) for _ in range(fleet.num_workers)]
    waiting = deque(enumerate(shards))
    arrivals = count()
    sequences: list[Tokens] = []
    while True:
        able = [one for one in workers if one.left or waiting]
        if not able:
            break
        worker = min(able, key=lambda one: one.now)
        while waiting and len(worker.left) < fleet.shards_in_flight:
            shard, members = waiting.popleft()
            worker.left[shard] = len(members)
            for index in members:
                sequence = to_sequence(shard, next(arrivals), prompts[index], given[index].max_tokens)
                worker.scheduler.add(sequence)
                sequences.append(sequence)
        worker.step()
    cached = sum(one.num_cached_tokens or 0 for one in sequences)
    return cached / sum(one.num_prompt_tokens for one in sequences), max(one.now for one in workers)


def to_sequence(shard: int, arrival: int, prompt: list[int], max_tokens: int) -> Tokens:
    """Return a request of a shard as a worker's scheduler takes it."""
    return Tokens(
        request_id=shard,
        arrival=arrival,
        token_ids=list(prompt),
        num_prompt_tokens=len(prompt),
        params=SamplingParams(max_tokens=max_tokens),
        seed=0,
        stop_token_ids=frozenset(),
        job="batch",
    )


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
        yield name, *variants


def measure(num_requests: int, fleet: Fleet) -> dict[str, dict[str, float]]:
    """Run every batch before and after; return shares from the cache and the ratio of the times."""
    tokenizer = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    found = {}
    for name, as_given, reordered in batches(num_requests):
        figures = {}
        for side, given, cut in (
            ("before", as_given, in_order),
            ("placed", as_given, placed),
            ("after", reordered, placed),
        ):
            prompts = [one.ids for one in tokenizer.encode_batch_fast([request.prompt for request in given])]
            figures[side] = run(given, prompts, cut(given, fleet.shard_size), fleet)
            print(f"{name:>8} {side:>8}: {figures[side][0]:.3f} from cache, {figures[side][1]:.1f} s")
        found[name] = {
            "cached_before": round(figures["before"][0], 3),
            "cached_placed": round(figures["placed"][0], 3),
            "cached_after": round(figures["after"][0], 3),
            "makespan_ratio": round(figures["after"][1] / figures["before"][1], 3),
        }
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000, help="in each batch")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--shard-size", type=int, default=64)
    parser.add_argument("--shards-in-flight", type=int, default=10, help="of each worker")
    parser.add_argument("--kv-tokens", type=int, default=131_072, help="of each worker's cache")
    options = parser.parse_args(arguments)
    if min(vars(options).values()) < 1 or options.kv_tokens < 8192:
        parser.error("every number must be at least 1, and --kv-tokens at least 8192")
    fleet = Fleet(options.workers, options.shard_size, options.shards_in_flight, options.kv_tokens)
    print(json.dumps(measure(options.requests, fleet) | {"requests": options.requests}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
