"""Measures the stated figures and writes them beside ours: `make claims`.

    python -m worker.embedded python -m benchmarks.stated [--only KEY ...] [--out DIR] [--rounds N]

The table and the pictures go to DIR, docs/claims by default, unless only some figures are measured: with
`--out docs/claims` these replace their lines there. The last
line is JSON: for each figure the sentence it stands for, what is stated, what was measured, whether that is
as good, and the benchmark. The status is 1 if a measurement failed; a figure that is missed is a result.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.neighbours import machine
from benchmarks.stated.batching import batching, utilization
from benchmarks.stated.figures import STATED, MeasuredFigure, StatedFigure, bound, holds, shown
from benchmarks.stated.operators import fusion, preemption, quantization
from benchmarks.stated.prefixes import conversations, kv_cache
from benchmarks.stated.report import draw, write_table
from benchmarks.stated.response_cache import response_cache
from benchmarks.stated.setup import ROUNDS, Setup, prepare
from benchmarks.stated.small_models import distillation, speculation
from worker.cores import usable_cores

OUT = Path(__file__).parent.parent.parent / "docs" / "claims"
QUIET = 0.3  # load for each core up to which a machine counts as quiet
# Each measures one figure or several.
MEASUREMENTS: dict[Callable[[Setup], dict[str, MeasuredFigure]], tuple[str, ...]] = {
    response_cache: ("response_cache",),
    batching: ("batching", "batching_cost", "padded_batches", "padding_waste"),
    utilization: ("utilization",),
    quantization: ("quantization_latency", "quantization_cost", "quantization_quality"),
    fusion: ("fusion",),
    kv_cache: ("kv_cache",),
    conversations: ("conversations",),
    preemption: ("preemption",),
    speculation: ("speculation",),
    distillation: ("distillation_latency", "distillation_quality"),
}


def measure(setup: Setup, wanted: Sequence[str]) -> tuple[dict[str, MeasuredFigure], list[str]]:
    """Run the measurements that give the wanted figures; return what they found, and those that failed."""
    found: dict[str, MeasuredFigure] = {}
    failed: list[str] = []
    for run, keys in MEASUREMENTS.items():
        if not set(keys) & set(wanted):
            continue
        started = time.perf_counter()
        try:
            found |= run(setup)
        except (OSError, RuntimeError, ValueError, subprocess.CalledProcessError) as error:
            failed += keys
            print(f"{', '.join(keys)}: {type(error).__name__}: {error}", file=sys.stderr)
        print(f"{', '.join(keys)}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return found, failed


def to_json(stated: StatedFigure, measured: MeasuredFigure) -> dict[str, Any]:
    """Return a figure as the last line has it."""
    return {
        "sentence": stated.sentence,
        "stated": bound(stated),
        "measured": round(measured.value, 4),
        "unit": stated.unit,
        "holds": holds(stated, measured),
        "bench": stated.bench,
        **measured.details,
    }


def heading(load: float, seconds: float, num_measured: int, day: str) -> str:
    """Return when and where the last figures were measured."""
    cores = usable_cores()
    state = "quiet" if load <= QUIET * cores else "**loaded: other work ran beside it**"
    took = f"(load {load:.1f} at the start), {seconds / 60:.0f} minutes for {num_measured} figures"
    return f"**Last run:** {day}. **Machine:** {machine(cores)}; {state} {took}."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    keys = [one.key for one in STATED]
    parser.add_argument("--only", nargs="+", choices=keys, metavar="KEY", help=f"of {', '.join(keys)}")
    parser.add_argument("--out", type=Path, help="default: docs/claims")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args(arguments)
    load, started = os.getloadavg()[0], time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found, failed = measure(prepare(Path(folder), options.rounds), options.only or keys)
    for one in STATED:
        if one.key in found:
            value = found[one.key]
            answer = {True: "holds", False: "misses it", None: "-"}[holds(one, value)]
            print(f"{one.key:22} {shown(one, value.value):>10}  stated {bound(one):18} {answer}")
    out: Path | None = options.out or (None if options.only else OUT)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        draw(out, found)
        day = time.strftime("%Y-%m-%d", time.gmtime())
        said = heading(load, time.perf_counter() - started, len(found), day)
        write_table(out / "results.md", found, said, day)
    print(json.dumps({one.key: to_json(one, found[one.key]) for one in STATED if one.key in found}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
