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
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

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
from worker.runs.tail import AGAIN_SECONDS, LOOK_SECONDS, MAX_SHARDS, WORTH_SECONDS, Pace, leaves
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
class Workers:
    """The simulated workers."""

    costs: tuple[StepCosts, ...]  # of each worker
    shard_size: int
    shards_in_flight: int
    kv_tokens: int  # of each worker
    leaves_tail: bool = False  # to those that end it sooner


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


@dataclass(slots=True)
class Ready:
    """A shard that waits for a worker."""

    number: int
    sequences: list[Tokens]
    since: float = 0.0
    avoided_by: int | None = None  # the worker that gave it back


@dataclass(slots=True, eq=False)
class Worker:
    """A worker with a clock of its own."""

    number: int
    scheduler: Scheduler
    costs: StepCosts
    now: float = 0.0
    look_at: float = 0.0  # whether to give a shard back
    held: dict[int, list[Tokens]] = field(default_factory=dict)  # requests without a result, by shard

    @property
    def load(self) -> Pace:
        """Return its speed and the requests that it holds."""
        return Pace(self.costs, MAX_ROWS, sum(map(len, self.held.values())))

    def take(self, shard: Ready) -> None:
        """Begin a shard."""
        self.now = max(self.now, shard.since)
        self.held[shard.number] = list(shard.sequences)
        for sequence in shard.sequences:
            self.scheduler.add(sequence)

    def step(self) -> None:
        """Run one Step."""
        plan = self.scheduler.schedule()
        self.scheduler.advance(plan)
        num_rows = len(plan.entries)
        context = sum(entry.start + entry.num_tokens for entry in plan.entries)
        self.now += self.costs.step + self.costs.row * num_rows + self.costs.context * context
        self.now += self.costs.token * (plan.num_tokens - num_rows)
        for entry in plan.entries:
            sequence = entry.sequence
            if not entry.is_sampled:
                continue
            sequence.token_ids.append(len(sequence.token_ids))
            if sequence.num_output_tokens == sequence.params.max_tokens:
                self.scheduler.finish(sequence, FinishReason.LENGTH)
                shard = int(str(sequence.request_id))
                self.held[shard].remove(sequence)
                if not self.held[shard]:
                    del self.held[shard]

    def give_back(self, number: int) -> Ready:
        """Stop a shard; its requests go on elsewhere from their last token."""
        rest = self.held.pop(number)
        for sequence in rest:
            self.scheduler.finish(sequence)
        resumed = [
            to_sequence(number, one.arrival, one.token_ids, one.params.max_tokens, one.num_prompt_tokens)
            for one in rest
        ]
        return Ready(number, resumed, self.now, avoided_by=self.number)


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
    given: Sequence[NewRequest],
    prompts: Sequence[list[int]],
    shards: Sequence[list[int]],
    fleet: Workers,
) -> tuple[float, float]:
    """Run shards in order; return the share of prompt tokens that came from the cache, and the seconds."""
    workers = [
        Worker(number, make_scheduler(fleet.kv_tokens), costs) for number, costs in enumerate(fleet.costs)
    ]
    sequences = [
        [to_sequence(number, index, prompts[index], given[index].max_tokens) for index in members]
        for number, members in enumerate(shards)
    ]
    expected = sum(request.max_tokens for request in given) / len(given)
    waiting = deque(Ready(number, its) for number, its in enumerate(sequences))
    while able := [one for one in workers if one.held or waiting]:
        worker = min(able, key=lambda one: one.now)
        others = [one.load for one in workers if one is not worker]
        while waiting and len(worker.held) < fleet.shards_in_flight:
            is_left = fleet.leaves_tail and leaves_next(worker.load, others, waiting, expected)
            if is_left or waiting[0].avoided_by == worker.number:
                break
            worker.take(waiting.popleft())
        if not worker.held:
            worker.now += WORTH_SECONDS / 2  # a ticket that it did not use comes again
            continue
        if fleet.leaves_tail and not waiting and worker.now >= worker.look_at:
            number, rest = next(reversed(worker.held.items()))
            load = replace(worker.load, num_requests=worker.load.num_requests - len(rest))
            size = {"num_of_shard": len(rest), "num_ready": len(rest)}
            is_given = leaves(load, others, **size, output_tokens=expected)
            worker.look_at = worker.now + (AGAIN_SECONDS if is_given else LOOK_SECONDS)
            if is_given:
                waiting.append(worker.give_back(number))
        if worker.held:
            worker.step()
    every = [one for its in sequences for one in its]
    cached = sum(one.num_cached_tokens or 0 for one in every)
    return cached / sum(one.num_prompt_tokens for one in every), max(one.now for one in workers)


def leaves_next(own: Pace, others: Sequence[Pace], waiting: Sequence[Ready], expected: float) -> bool:
    """Return whether a worker leaves the next shard to the others, as the service decides it."""
    if len(waiting) > MAX_SHARDS or waiting[0].avoided_by is not None:
        return False
    num_ready = sum(len(one.sequences) for one in waiting)
    first = len(waiting[0].sequences)
    return leaves(own, others, num_of_shard=first, num_ready=num_ready, output_tokens=expected)


def to_sequence(
    shard: int, arrival: int, token_ids: list[int], max_tokens: int, num_prompt_tokens: int | None = None
) -> Tokens:
    """Return a request of a shard as a worker's scheduler takes it, perhaps with tokens of its output."""
    return Tokens(
        request_id=shard,
        arrival=arrival,
        token_ids=list(token_ids),
        num_prompt_tokens=len(token_ids) if num_prompt_tokens is None else num_prompt_tokens,
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
        yield name, variants[0], variants[1]


def measure(num_requests: int, fleet: Workers) -> dict[str, dict[str, float]]:
    """Run every batch before and after; return shares from the cache and the ratio of the times."""
    found = {}
    for name, as_given, reordered in batches(num_requests):
        figures: dict[str, tuple[float, float]] = {}
        for side, given, cut in (
            ("before", as_given, in_order),
            ("placed", as_given, placed),
            ("after", reordered, placed),
        ):
            if side == "after" and reordered == as_given:
                figures[side] = figures["placed"]
                continue
            figures[side] = run(given, encode(given), cut(given, fleet.shard_size), fleet)
            print(f"{name:>8} {side:>8}: {figures[side][0]:.3f} from cache, {figures[side][1]:.1f} s")
        found[name] = {
            "cached_before": round(figures["before"][0], 3),
            "cached_placed": round(figures["placed"][0], 3),
            "cached_after": round(figures["after"][0], 3),
            "makespan_ratio": round(figures["after"][1] / figures["before"][1], 3),
        }
    return found


def measure_unlike(num_requests: int, fleet: Workers) -> dict[str, float]:
    """Run a batch without and with a worker that is ten times as slow, and takes or leaves last shards."""
    _, given, _ = next(batches(num_requests))
    prompts = encode(given)
    slow = StepCosts(**{one: 10 * value for one, value in asdict(COSTS).items()} | {"max_rows": MAX_ROWS})
    shards = placed(given, fleet.shard_size)
    seconds = [
        run(given, prompts, shards, replace(one, costs=costs))[1]
        for one, costs in (
            (fleet, fleet.costs[:-1]),
            (fleet, (*fleet.costs[:-1], slow)),
            (replace(fleet, leaves_tail=True), (*fleet.costs[:-1], slow)),
        )
    ]
    without, takes, leaves_it = seconds
    print(f"  unlike: {without:.1f} s without the slow one, {takes:.1f} if it takes all, {leaves_it:.1f} s")
    return {"without_slow": round(without, 1), "takes": round(takes, 1), "leaves": round(leaves_it, 1)}


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
    parser.add_argument("--workers", type=int, default=4, help="at least 2")
    parser.add_argument("--shard-size", type=int, default=64)
    parser.add_argument("--shards-in-flight", type=int, default=10, help="of each worker")
    parser.add_argument("--kv-tokens", type=int, default=131_072, help="of each worker's cache")
    options = parser.parse_args(arguments)
    if min(vars(options).values()) < 1 or options.workers < 2 or options.kv_tokens < 8192:
        parser.error("every number must be at least 1, --workers at least 2, and --kv-tokens at least 8192")
    costs = (COSTS,) * options.workers
    fleet = Workers(costs, options.shard_size, options.shards_in_flight, options.kv_tokens)
    found: dict[str, Any] = {"requests": options.requests, **measure(options.requests, fleet)}
    found["unlike"] = measure_unlike(options.requests, fleet)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
