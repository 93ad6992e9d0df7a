r"""Compares admission policies on skewed work: many short outputs, a few very long ones, few Blocks.

    python -m benchmarks.admission --model DIR --dtype f32|bf16|int8 --threads N --runs N

There are six backlogs, each queued at once:

- `mixed`: long and short requests in random order; max_tokens equals the output's real length.
- `late`: the same requests, the long ones last, as when one batch follows another.
- `first`: the long ones first, so an order by length gains nothing.
- `hidden`: as `mixed`, but every request allows the longest output; outputs of one job have similar lengths.
- `blind`: as `hidden`, but all requests belong to one job, so nothing tells them apart.
- `prefixes`: as `mixed`, but groups of requests share the beginning of their prompts.

The policies run in turns, each run with different tokens, and their medians are compared. The last line is
JSON.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.workloads import NUM_RESERVED_IDS
from worker.engine.engine import Engine
from worker.engine.requests.config import ADMISSIONS, DTYPES, EngineConfig
from worker.engine.requests.errors import EngineError
from worker.engine.requests.generation import GenerationRequest
from worker.values.outcomes import FinishReason
from worker.values.sampling import SamplingParams

STOP_ID = 2
BACKLOGS = ("mixed", "late", "first", "hidden", "blind", "prefixes")
COUNTERS = ("steps", "prefill_tokens", "recomputed_tokens", "preemptions", "cached_tokens")


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers of short and long requests in a backlog."""

    num_short: int
    num_long: int
    long_tokens: int  # the longest output

    def outputs(self, numbers: random.Random, name: str) -> list[tuple[str, int]]:
        """Return (job, length of the output) for every request, in the order they arrive."""
        long = [
            ("long", numbers.randint(self.long_tokens * 3 // 4, self.long_tokens))
            for _ in range(self.num_long)
        ]
        short = [("short", numbers.randint(8, 48)) for _ in range(self.num_short)]
        outputs = long + short if name == "first" else short + long
        if name not in {"first", "late"}:
            numbers.shuffle(outputs)
        return outputs


def make_backlog(name: str, shape: Shape, vocab_size: int, seed: int) -> list[GenerationRequest]:
    """Return the requests of one run; the seed changes the tokens, not the lengths or the order."""
    lengths, tokens = random.Random(name), random.Random(seed)

    def prompt(count: int) -> list[int]:
        return [tokens.randrange(NUM_RESERVED_IDS, vocab_size) for _ in range(count)]

    prefixes = [prompt(128) for _ in range(max(1, shape.num_short // 16))]
    requests = []
    for index, (job, length) in enumerate(shape.outputs(lengths, name)):
        prompt_ids = prompt(lengths.randint(16, 96))
        if name == "prefixes":
            prompt_ids = lengths.choice(prefixes) + prompt_ids
        params = SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True)
        if name in {"hidden", "blind"}:
            params = SamplingParams(
                max_tokens=shape.long_tokens,
                temperature=0.0,
                ignore_eos=True,
                min_tokens=length - 1,
                stop_token_ids=(STOP_ID,),
                logit_bias=((STOP_ID, 100.0),),
            )
        batch = "all" if name == "blind" else job
        requests.append(GenerationRequest(index, prompt_ids, params, job=f"{batch} {seed}"))
    return requests


def run_once(engine: Engine, requests: Sequence[GenerationRequest]) -> dict[str, float]:
    """Run a backlog to its end; return its seconds and the increase of each counter."""
    engine.clear_prefix_cache()
    before = asdict(engine.stats)
    started, cpu_started = time.perf_counter(), time.process_time()
    for request in requests:
        engine.add(request)
    while engine.has_unfinished:
        for completion in engine.step().completions:
            if completion.finish_reason is FinishReason.ERROR:
                raise RuntimeError(f"request {completion.id}: {completion.error}")
    seconds = {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu_started,  # excludes other processes
    }
    after = asdict(engine.stats)
    return seconds | {name: after[name] - before[name] for name in COUNTERS}


def compare(engines: dict[str, Engine], name: str, shape: Shape, runs: int) -> dict[str, dict[str, float]]:
    """Run the policies in turns; return each one's medians over `runs` runs after a warm-up."""
    vocab_size = next(iter(engines.values())).model_info.vocab_size
    results: dict[str, list[dict[str, float]]] = {policy: [] for policy in engines}
    for run in range(runs + 1):
        requests = make_backlog(name, shape, vocab_size, run)
        turn = list(engines) if run % 2 else list(engines)[::-1]
        for policy in turn:
            result = run_once(engines[policy], requests)
            if run:
                results[policy].append(result)
    return {
        policy: {key: round(statistics.median(row[key] for row in rows), 3) for key in rows[0]}
        for policy, rows in results.items()
    }


def print_table(found: dict[str, dict[str, dict[str, float]]]) -> None:
    """Print one line per backlog and policy."""
    columns = ("seconds", "cpu_seconds", *COUNTERS)
    print("".join(f"{title:>19}" for title in ("backlog", "policy", *columns)))
    for name, policies in found.items():
        for policy, row in policies.items():
            print("".join(f"{value:>19}" for value in (name, policy, *(f"{row[key]:g}" for key in columns))))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face checkpoint directory")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--threads", type=int, default=None, help="default: torch's own choice")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--num-blocks", type=int, default=192, help="of 16 tokens")
    parser.add_argument("--num-short", type=int, default=240)
    parser.add_argument("--num-long", type=int, default=6)
    parser.add_argument("--long-tokens", type=int, default=768, help="the longest output")
    options = parser.parse_args(arguments)
    if min(options.runs, options.num_short, options.num_long) < 1 or options.long_tokens < 64:
        parser.error("--runs, --num-short and --num-long must be at least 1, --long-tokens at least 64")
    shape = Shape(options.num_short, options.num_long, options.long_tokens)
    try:
        engines = {
            policy: Engine(
                EngineConfig(
                    model=options.model,
                    dtype=options.dtype,
                    num_threads=options.threads,
                    num_blocks=options.num_blocks,
                    admission=policy,
                )
            )
            for policy in ADMISSIONS
        }
        found = {name: compare(engines, name, shape, options.runs) for name in BACKLOGS}
    except (EngineError, RuntimeError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print_table(found)
    gains = {
        name: round(policies["fifo"]["seconds"] / policies["length-aware"]["seconds"], 3)
        for name, policies in found.items()
    }
    print(
        json.dumps(
            {
                "model": options.model.resolve().name,
                "dtype": options.dtype,
                "threads": options.threads,
                "runs": options.runs,
                "num_blocks": options.num_blocks,
                "requests": options.num_short + options.num_long,
                "long_tokens": options.long_tokens,
                "speedup": gains,
                "medians": found,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
