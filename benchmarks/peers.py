r"""Runs one workload through this engine and a peer in turns, each turn in its own process.

    python -m benchmarks.peers PEER --model DIR --workload FILE.jsonl --dtype int8 --threads 2 \
        --rounds 3 --out FILE.json

The peer is installed once, in its own environment. Both sides decode greedily, every request for exactly its
max_tokens. A turn warms up once, then times `--runs` runs, each with different tokens. Loading and conversion
are not timed. PEER may be `no-prefix-cache`, which is this engine without its prefix cache, or a file like
those in `peer_engines/`. The ratio is the median over rounds of our rate to the peer's: the two turns of a
round are close in time, while the machine may change between rounds. The last line is JSON;
docs/benchmarks.md explains its fields. This module must not import torch: a child's peak memory includes its
parent's from before it started.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.comparison import Result, Side, compare, table
from benchmarks.neighbours import busy_neighbours, machine
from benchmarks.peer_environment import (
    TIMED_RUN,
    PeerError,
    choose_dtype,
    converted,
    install,
    interpreter,
    peer_environ,
    read_peer,
    run_logged,
)
from benchmarks.workloads import WorkItem, read_workload, shifted

ROOT = Path(__file__).parent.parent
OURS = "headrace"
OUR_DTYPES = ("f32", "bf16", "int8")
WITHOUT_PREFIX_CACHE = "no-prefix-cache"


def our_side(options: argparse.Namespace, name: str, dtype: str, *flags: str) -> Side:
    """Return the side that runs this engine by `benchmarks.offline`, with the current interpreter."""

    def turn() -> Result:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "result.json"
            command = [sys.executable, "-m", "benchmarks.offline", "--model", str(options.model.resolve())]
            command += ["--workload", str(options.workload.resolve()), "--dtype", dtype, *flags]
            if options.kv_cache_dtype is not None:
                command += ["--kv-cache-dtype", options.kv_cache_dtype]
            command += ["--threads", str(options.threads), "--runs", str(options.runs), "--out", str(out)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                raise PeerError(f"{name} ended with {done.returncode}: {done.stderr}")
            result = dict(json.loads(out.read_text(encoding="utf-8")))
            return result | {
                "versions": {package: importlib.metadata.version(package) for package in ("torch", "numba")},
                "options": {key: result[key] for key in ("prefix_cache", "kv_cache_dtype")},
            }

    return Side(name, dtype, turn)


def peer_side(options: argparse.Namespace, items: Sequence[WorkItem]) -> Side:
    """Install the peer and convert the checkpoint for it where needed; return its side."""
    peer = read_peer(options.peer)
    unknown = options.option.keys() - peer.options.keys()
    if unknown:
        raise PeerError(
            f"{peer.name} has no --option {', '.join(sorted(unknown))}, only {', '.join(peer.options)}"
        )
    dtype = choose_dtype(peer, options.dtype, options.peer_dtype)
    config = json.loads((options.model / "config.json").read_text(encoding="utf-8"))
    folder = options.cache.absolute() / peer.name
    folder.mkdir(parents=True, exist_ok=True)
    python = interpreter(options.environment) if options.environment else install(peer, folder)
    path = converted(peer, python, options.model, dtype, folder)
    runs = [shifted(items, config["vocab_size"], run) for run in range(options.runs + 1)]
    job = {
        "path": str(path),
        "dtype": dtype,
        "threads": options.threads,
        "max_model_len": max(len(item.prompt_ids) + item.max_tokens for item in items),
        "options": peer.options | options.option,
        "packages": peer.packages,
        "runs": [[item.prompt_ids for item in run] for run in runs],
        "max_tokens": [item.max_tokens for item in items],
    }

    def turn() -> Result:
        job_file, out = folder / "job.json", folder / "result.json"
        job_file.write_text(json.dumps(job), encoding="utf-8")
        out.unlink(missing_ok=True)
        command = [str(python), "-I", str(TIMED_RUN), "run", str(peer.file), str(job_file), str(out)]
        run_logged(command, folder, peer_environ(options.threads))
        return dict(json.loads(out.read_text(encoding="utf-8"))) | {"options": job["options"]}

    return Side(peer.name, dtype, turn)


def option(text: str) -> tuple[str, int]:
    """Return the key and value of KEY=INTEGER; raise ValueError for anything else."""
    key, _, value = text.partition("=")
    return key, int(value)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line and return its options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peer", metavar="PEER")
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face checkpoint directory")
    parser.add_argument("--workload", type=Path, required=True, help="JSON lines")
    parser.add_argument("--dtype", choices=OUR_DTYPES, default="bf16")
    parser.add_argument(
        "--kv-cache-dtype", choices=("plain", "int8"), help="ours; a peer has its own default"
    )
    parser.add_argument("--peer-dtype", help="default: the same, or the next wider one the peer has")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=1, help="timed runs in a turn")
    parser.add_argument("--beside", type=int, default=0, metavar="N", help="busy processes beside every turn")
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "peers")
    parser.add_argument("--environment", type=Path, help="use this virtual environment; install nothing")
    parser.add_argument(
        "--option", type=option, action="append", default=[], metavar="KEY=INTEGER", help="a peer's setting"
    )
    parser.add_argument("--out", type=Path, required=True, help="result file")
    options = parser.parse_args(arguments)
    for name in ("rounds", "runs", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if options.beside < 0:
        parser.error("--beside must be at least 0")
    options.option = dict(options.option)
    if options.peer == WITHOUT_PREFIX_CACHE and (options.option or options.environment):
        parser.error(f"{WITHOUT_PREFIX_CACHE} is this engine: it takes no --option and no --environment")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    options = parse(arguments)
    try:
        items = read_workload(options.workload)
        ours = our_side(options, OURS, options.dtype)
        if options.peer == WITHOUT_PREFIX_CACHE:
            dtype = options.peer_dtype or options.dtype
            peer = our_side(options, WITHOUT_PREFIX_CACHE, dtype, "--no-prefix-cache")
        else:
            peer = peer_side(options, items)
        with busy_neighbours(options.beside):
            comparison = compare(ours, peer, items, options.rounds)
    except (PeerError, OSError, KeyError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    comparison |= {
        "model": options.model.resolve().name,
        "workload": options.workload.stem,
        "threads": options.threads,
        "beside": options.beside,
        "machine": machine(os.cpu_count()),
        "python": platform.python_version(),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(comparison) + "\n", encoding="utf-8")
    print(table(comparison))
    print(json.dumps(comparison))
    return 0


if __name__ == "__main__":
    sys.exit(main())
