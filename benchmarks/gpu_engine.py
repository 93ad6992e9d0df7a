"""Times the engine end to end on a GPU: a Llama 3.1 8B with random weights, all requests queued at once.

    python -m benchmarks.gpu_engine [--dtype fp8] [--requests 2000] [--lengths 128/128,1000/1000]

Prints the engine's output tokens per second as they are measured, then a table of them beside those of
transformers' own continuous batching in the same run (bf16, if it is installed), and beside what TensorRT-LLM
publishes for one H200 in fp8. Beside each is the share of wall time in which the GPU was busy, from a profile
of Steps in the middle of the run. The last line is JSON.
"""

import argparse
import gc
import importlib.util
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.checkpoints import (
    LLAMA_8B,
    LLAMA_8B_VOCAB_SIZE,
    SIZES,
    VOCAB_SIZE,
    train_tokenizer,
    write_checkpoint,
)
from benchmarks.offline import run_workload
from benchmarks.peer_engines import transformers as peer
from benchmarks.workloads import WorkItem
from kernels.benchmarking import require_gpu
from worker.engine.engine import Engine
from worker.engine.requests.config import DEVICES, DTYPES, LIMITS_BY_DEVICE, EngineConfig
from worker.engine.requests.errors import EngineError
from worker.engine.requests.generation import GenerationRequest
from worker.values.sampling import SamplingParams

# Output tokens per second by tokens in and out: TensorRT-LLM's performance overview, fp8, one H200.
PUBLISHED = {(128, 128): 27_911, (1000, 1000): 17_744}
MODELS = {"llama-8b": (LLAMA_8B, LLAMA_8B_VOCAB_SIZE), "small": (SIZES["small"], VOCAB_SIZE)}
PROFILED_STEPS = 40
WARM_UP = 8  # requests
FIRST_ID = 3  # the first id that is no special token


def items_of(count: int, num_in: int, num_out: int, vocab_size: int, seed: int) -> list[WorkItem]:
    """Return requests of random tokens; no two share a prefix."""
    numbers = random.Random(seed)
    return [
        WorkItem(tuple(numbers.randrange(FIRST_ID, vocab_size) for _ in range(num_in)), num_out)
        for _ in range(count)
    ]


def tokens_a_second(engine: Engine, items: Sequence[WorkItem]) -> float:
    """Run all items at once; return the output tokens per second."""
    began = time.perf_counter()
    run_workload(engine, items)
    return sum(item.max_tokens for item in items) / (time.perf_counter() - began)


def busy_share(engine: Engine, items: Sequence[WorkItem]) -> float:
    """Return the share of time in which the GPU was busy, over Steps after half of the items are done."""
    for index, item in enumerate(items):
        params = SamplingParams(max_tokens=item.max_tokens, temperature=0.0, ignore_eos=True)
        engine.add(GenerationRequest(index, item.prompt_ids, params))
    num_done = 0
    while num_done < len(items) // 2:
        num_done += len(engine.step().completions)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        began = time.perf_counter()
        for _ in range(PROFILED_STEPS):
            engine.step()
        torch.cuda.synchronize()
        wall_microseconds = (time.perf_counter() - began) * 1e6
    for index in range(len(items)):
        engine.cancel(index)
    while engine.has_unfinished:
        engine.step()
    events = found.events() or ()
    spans = ((event.time_range.start, event.time_range.end) for event in events)
    return covered(spans) / wall_microseconds


def covered(spans: Iterator[tuple[float, float]]) -> float:
    """Return the total length of the union of the spans."""
    total, end = 0.0, float("-inf")
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


def measure_peer(model: Path, lengths: Sequence[tuple[int, int]], requests: int) -> list[float]:
    """Return the output tokens per second of transformers for each of `lengths`."""
    sequences, tokens = LIMITS_BY_DEVICE["cuda"]
    options = peer.OPTIONS | {"cuda": 1, "tokens": tokens, "sequences": sequences, "pages": 0}
    generate = peer.load(model, "bf16", torch.get_num_threads(), max(map(sum, lengths)), options)
    found = []
    for num_in, num_out in lengths:
        generate([[FIRST_ID] * num_in] * WARM_UP, [num_out] * WARM_UP)
        items = items_of(requests, num_in, num_out, VOCAB_SIZE, seed=1)
        began = time.perf_counter()
        generate([list(item.prompt_ids) for item in items], [num_out] * requests)
        found.append(requests * num_out / (time.perf_counter() - began))
    return found


def measure(
    model: Path, config: EngineConfig, lengths: Sequence[tuple[int, int]], requests: int
) -> list[dict[str, float]]:
    """Return the engine's figures for each of `lengths`, and the GPU's busy share where there is a GPU."""
    engine = Engine(config)
    vocab_size = engine.model_info.vocab_size
    rows: list[dict[str, float]] = []
    for num_in, num_out in lengths:
        tokens_a_second(engine, items_of(WARM_UP, num_in, num_out, vocab_size, seed=0))
        items = items_of(requests, num_in, num_out, vocab_size, seed=1)
        row = {"in": num_in, "out": num_out, "out_tok_s": tokens_a_second(engine, items)}
        if config.device == "cuda":
            row["gpu_busy_share"] = busy_share(
                engine, items_of(requests, num_in, num_out, vocab_size, seed=2)
            )
        rows.append(row)
        print(described(row), flush=True)
    del engine
    gc.collect()
    if config.device == "cuda":
        torch.cuda.empty_cache()
        if importlib.util.find_spec("transformers") is not None:
            for row, theirs in zip(rows, measure_peer(model, lengths, requests), strict=True):
                row["transformers_out_tok_s"] = theirs
    return rows


def described(row: dict[str, float]) -> str:
    """Return a row of the table."""
    return "  ".join(f"{name} {value:.4g}" for name, value in row.items())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=DEVICES, default="cuda")
    parser.add_argument("--dtype", choices=DTYPES, default="fp8")
    parser.add_argument("--kv-cache-dtype", choices=("plain", "int8", "fp8"), default=None)
    parser.add_argument("--size", choices=tuple(MODELS), default="llama-8b")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--lengths", default="128/128,1000/1000", help="tokens in/out, separated by commas")
    options = parser.parse_args(arguments)
    try:
        lengths = [(int(a), int(b)) for a, b in (one.split("/") for one in options.lengths.split(","))]
    except ValueError:
        parser.error(f"--lengths: {options.lengths!r} is not IN/OUT,IN/OUT")
    if options.device == "cuda":
        require_gpu()
    size, vocab_size = MODELS[options.size]
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, options.size)
        library = sorted(Path(random.__file__).parent.glob("*.py"))
        tokenizer = train_tokenizer(path.read_text(encoding="utf-8") for path in library)
        write_checkpoint(model, size, tokenizer, vocab_size=vocab_size)
        try:
            config = EngineConfig.for_device(
                options.device,
                model=model,
                dtype=options.dtype,
                kv_cache_dtype=options.kv_cache_dtype,
                max_model_len=max(map(sum, lengths)),
                enable_prefix_cache=False,
            )
            rows = measure(model, config, lengths, options.requests)
        except EngineError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 2
    for row in rows:
        published = PUBLISHED.get((int(row["in"]), int(row["out"])))
        if published is not None:
            row["tensorrt_llm_out_tok_s"] = published
        print(described(row))
    print(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
