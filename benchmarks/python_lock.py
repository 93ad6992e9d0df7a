r"""Measures Steps beside threads that run Python, by the time for which one may keep Python's lock.

    python -m benchmarks.python_lock --model DIR --workload FILE.jsonl --dtype f32|bf16|int8

A worker's engine shares Python's lock with the runs of shards. Here one thread runs Steps on one core, and
other threads count. The last line is JSON: by the number of other threads and by the milliseconds that one
may keep the lock, the median milliseconds of a Step without prompts, and the millions that the others count
to in a second.
"""

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.offline import requests_of
from benchmarks.workloads import WorkItem, read_workload, shifted
from worker.engine.engine import Engine
from worker.engine.requests.config import DTYPES, EngineConfig
from worker.engine.requests.errors import EngineError

MILLISECONDS = (5.0, 0.5, 0.2, 0.1)  # the first is Python's default
OTHERS = (0, 1, 2)


@contextmanager
def counting(num_threads: int) -> Iterator[list[int]]:
    """Let threads count while the block runs; afterwards the list holds how far each has come."""
    counts: list[int] = []
    is_over = False

    def count() -> None:
        number = 0
        while not is_over:
            number += 1
        counts.append(number)

    threads = [threading.Thread(target=count) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        is_over = True
        for thread in threads:
            thread.join()


def measure(engine: Engine, items: Sequence[WorkItem], num_others: int) -> dict[str, float]:
    """Run the items beside so many threads and return the figures."""
    for request in requests_of(items):
        engine.add(request)
    steps: list[float] = []
    started = time.perf_counter()
    with counting(num_others) as counts:
        while engine.has_unfinished:
            prompts, begun = engine.stats.prefill_tokens, time.perf_counter()
            engine.step()
            if engine.stats.prefill_tokens == prompts:
                steps.append(time.perf_counter() - begun)
    seconds = time.perf_counter() - started
    return {
        "step_ms": round(1e3 * statistics.median(steps), 2),
        "others_m_s": round(sum(counts) / seconds / 1e6, 1),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face checkpoint directory")
    parser.add_argument("--workload", type=Path, required=True, help="JSON lines")
    parser.add_argument("--dtype", choices=DTYPES, default="int8")
    options = parser.parse_args(arguments)
    usual = sys.getswitchinterval()
    found: dict[str, dict[str, Any]] = {}
    try:
        engine = Engine(EngineConfig(model=options.model, dtype=options.dtype, num_threads=1))
        items = read_workload(options.workload)
        measure(engine, items, 0)
        runs = 0
        for num_others in OTHERS:
            figures = found.setdefault(f"others_{num_others}", {})
            for milliseconds in MILLISECONDS[: None if num_others else 1]:
                runs += 1  # other tokens each time, so that no prompt is cached
                sys.setswitchinterval(milliseconds / 1e3)
                variant = shifted(items, engine.model_info.vocab_size, runs)
                figures[f"{milliseconds:g}"] = measure(engine, variant, num_others)
    except (EngineError, OSError, KeyError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    finally:
        sys.setswitchinterval(usual)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
