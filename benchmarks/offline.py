r"""Runs a fixed workload through the bare engine and times it.

    python -m benchmarks.offline --model DIR --workload FILE.jsonl --dtype f32|bf16|int8 \
        --threads N --runs N --out FILE.json [--no-prefix-cache]

A workload line is {"id", "prompt_ids", "text", "max_tokens"}; every request decodes greedily for exactly
max_tokens. The warm-up run gives `outputs`. Each timed run shifts all token ids by a different amount (same
lengths, other tokens), so that the prefix cache of one run cannot serve the next. Model loading is not timed.
"""

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.workloads import WorkItem, read_workload, shifted
from worker.engine.engine import Engine
from worker.engine.engine_thread import EngineThread
from worker.engine.requests.config import DTYPES, EngineConfig
from worker.engine.requests.errors import EngineError
from worker.engine.requests.generation import Completion, GenerationRequest
from worker.values.sampling import SamplingParams


def run_workload(engine: Engine, items: Sequence[WorkItem]) -> list[list[int]]:
    """Run all items at once and return their tokens in order; raise RuntimeError if one ends early."""
    for request in requests_of(items):
        engine.add(request)
    completions: list[Completion] = []
    while engine.has_unfinished:
        completions += engine.step().completions
    return _outputs(items, completions)


def run_together(thread: EngineThread, items: Sequence[WorkItem]) -> list[list[int]]:
    """Do as `run_workload`, on all threads that a worker has for its engine."""
    submission = thread.submit(requests_of(items))
    completions: list[Completion] = []
    while not submission.is_done:
        completions += submission.take(timeout=60.0, least=len(items))
    return _outputs(items, completions)


def requests_of(items: Sequence[WorkItem]) -> list[GenerationRequest]:
    """Return the requests of a workload, with their places as ids."""
    return [
        GenerationRequest(
            index,
            item.prompt_ids,
            SamplingParams(max_tokens=item.max_tokens, temperature=0.0, ignore_eos=True),
        )
        for index, item in enumerate(items)
    ]


def _outputs(items: Sequence[WorkItem], completions: Iterable[Completion]) -> list[list[int]]:
    outputs: list[list[int]] = [[] for _ in items]
    for completion in completions:
        index = int(str(completion.id))
        outputs[index] = list(completion.token_ids)
        if len(outputs[index]) != items[index].max_tokens:
            raise RuntimeError(f"request {index} ended early: {completion.error or completion.finish_reason}")
    return outputs


def peak_rss_mb() -> float:
    """Return the peak memory of this process, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)  # macOS counts in bytes, Linux in KiB


def measure(config: EngineConfig, items: Sequence[WorkItem], runs: int) -> dict[str, Any]:
    """Load the model, warm up, time `runs` runs and return the result object."""
    started = time.perf_counter()
    engine = EngineThread(lambda: Engine(config))
    engine.start()
    load_seconds = time.perf_counter() - started
    outputs: list[list[int]] = []
    seconds: list[float] = []
    for run in range(runs + 1):
        variant = shifted(items, engine.model_info.vocab_size, run)
        started = time.perf_counter()
        result = run_together(engine, variant)
        elapsed = time.perf_counter() - started
        if run == 0:
            outputs = result
        else:
            seconds.append(elapsed)
    engine.stop()
    median = statistics.median(seconds)
    num_output = sum(item.max_tokens for item in items)
    num_prompt = sum(len(item.prompt_ids) for item in items)
    return {
        "load_s": round(load_seconds, 3),
        "runs": [round(value, 4) for value in seconds],
        "median_s": round(median, 4),
        "out_tok_s": round(num_output / median, 1),
        "total_tok_s": round((num_output + num_prompt) / median, 1),
        "peak_rss_mb": round(peak_rss_mb(), 1),
        "requests": len(items),
        "prompt_tokens": num_prompt,
        "output_tokens": num_output,
        "stats": asdict(engine.stats),
        "outputs": outputs,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face checkpoint directory")
    parser.add_argument("--workload", type=Path, required=True, help="JSON lines")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument(
        "--kv-cache-dtype", choices=("plain", "int8"), help="default: int8, and plain with f32"
    )
    parser.add_argument("--threads", type=int, default=None, help="default: torch's own choice")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True, help="result file")
    parser.add_argument("--no-prefix-cache", action="store_true", help="share nothing between requests")
    options = parser.parse_args(arguments)
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    try:
        config = EngineConfig(
            model=options.model,
            dtype=options.dtype,
            kv_cache_dtype=options.kv_cache_dtype,
            num_threads=options.threads,
            enable_prefix_cache=not options.no_prefix_cache,
        )
        result = measure(config, read_workload(options.workload), options.runs)
    except (EngineError, OSError, KeyError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    result |= {"model": options.model.resolve().name, "dtype": options.dtype, "threads": options.threads}
    result |= {"prefix_cache": not options.no_prefix_cache, "kv_cache_dtype": options.kv_cache_dtype}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in result.items() if key != "outputs"}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
