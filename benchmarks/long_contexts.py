r"""Measures how threads of a CPU share the context of one Sequence, and its Steps.

    python -m benchmarks.long_contexts --model DIR --dtype f32|bf16|int8 --threads 2 --contexts 64 4000 16000

For each context: the attention of one row, as the mean of the model's layers, whose Blocks lie in random
places, on one thread and on all; and a decode Step of the engine, which runs nothing else. All layers read
the whole context in the first two; in the Step, a layer with a window reads that. The last line is JSON: the
medians by context.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.offline import requests_of
from benchmarks.workloads import WorkItem
from kernels.kv_write import LayerCache
from kernels.paged_attention import paged_attention, plan_attention
from worker.engine.engine import Engine
from worker.engine.models.registry import Architecture, read_architecture
from worker.engine.requests.config import DTYPES, EngineConfig
from worker.engine.requests.errors import EngineError

BLOCK_SIZE = 16
MOST_TOKENS = 40  # that one Sequence generates in a round


def random_caches(shape: Architecture, num_blocks: int, dtype: torch.dtype) -> list[LayerCache]:
    """Return the cache of all layers with something in each Slot."""
    caches = []
    for _ in range(shape.num_layers):
        cache = LayerCache.allocate(num_blocks, shape.num_kv_heads, BLOCK_SIZE, shape.head_dim, dtype)
        for memory in (cache.keys, cache.values):
            memory.copy_(torch.randint(-9, 10, memory.shape))
        if cache.scales is not None:
            cache.scales.fill_(0.05)
        caches.append(cache)
    return caches


def attention_seconds(shape: Architecture, dtype: torch.dtype, context: int, rounds: int) -> float:
    """Return the median seconds of one row's attention in a layer, on torch's threads."""
    num_blocks, group = -(-context // BLOCK_SIZE), shape.num_heads // shape.num_kv_heads
    caches = random_caches(shape, num_blocks, dtype)
    query = torch.randn(shape.num_kv_heads, 1, group, shape.head_dim)
    plan = plan_attention(
        [1],
        np.array([context - 1]),
        np.random.default_rng(1).permutation(num_blocks)[np.newaxis],
        block_size=BLOCK_SIZE,
        group=group,
        head_dim=shape.head_dim,
    )
    found = []
    for _ in range(5 * rounds + 1):
        begun = time.perf_counter()
        for cache in caches:
            paged_attention(query, cache, plan, shape.head_dim**-0.5, dtype=torch.float32)
        found.append((time.perf_counter() - begun) / len(caches))
    return statistics.median(found[1:])


def step_seconds(engine: Engine, context: int, generator: random.Random) -> float:
    """Return the median seconds of the last Steps of a Sequence that ends at a context."""
    info = engine.model_info
    if not 2 <= context <= info.max_model_len:
        raise ValueError(f"--contexts: {context} is not within 2..{info.max_model_len}, as the model takes")
    count = min(MOST_TOKENS, context - 1)
    prompt = tuple(generator.randrange(info.vocab_size) for _ in range(context - count))
    for request in requests_of([WorkItem(prompt_ids=prompt, max_tokens=count)]):
        engine.add(request)
    found = []
    while engine.has_unfinished:
        begun = time.perf_counter()
        output = engine.step()
        if output.num_new_tokens:
            found.append(time.perf_counter() - begun)
    return statistics.median(found[1:] or found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face checkpoint directory")
    parser.add_argument("--dtype", choices=DTYPES, default="int8")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--contexts", type=int, nargs="+", default=[64, 1000, 4000, 16000])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    before, generator, found = torch.get_num_threads(), random.Random(1), {}
    try:
        shape = read_architecture(options.model)
        config = EngineConfig(
            model=options.model,
            dtype=options.dtype,
            num_threads=options.threads,
            enable_prefix_cache=False,
        )
        stored = torch.int8 if config.kv_format == "int8" else torch.float32
        engine = Engine(config)
        # In turns, as other programs of a machine come and go.
        rounds = [
            [step_seconds(engine, context, generator) for context in options.contexts]
            for _ in range(options.rounds)
        ]
        for context, steps in zip(options.contexts, zip(*rounds, strict=True), strict=True):
            figures = {"step_ms": round(1e3 * statistics.median(steps), 3)}
            for name, threads in (("one_us", 1), ("all_us", options.threads)):
                torch.set_num_threads(threads)
                figures[name] = round(1e6 * attention_seconds(shape, stored, context, options.rounds), 2)
            found[str(context)] = figures
    except (EngineError, OSError, ValueError, RuntimeError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    finally:
        torch.set_num_threads(before)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
