"""Runs two sides in turns and compares their medians; knows neither this engine nor any peer."""

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.workloads import WorkItem

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the comparison; `turn` runs it once, in a new process."""

    name: str
    dtype: str
    turn: Callable[[], Result]


def agreement(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> float:
    """Return the mean share of an output that precedes the first differing token."""
    shares = []
    for mine, other in zip(ours, theirs, strict=True):
        same = 0
        while same < len(mine) and mine[same] == other[same]:
            same += 1
        shares.append(same / len(mine))
    return statistics.mean(shares)


def summary(side: Side, results: Sequence[Result], output_tokens: int) -> Result:
    """Return the medians over all timed runs of a side."""
    rates = [output_tokens / seconds for result in results for seconds in result["runs"]]
    return {
        "engine": side.name,
        "dtype": side.dtype,
        "out_tok_s": round(statistics.median(rates), 1),
        "spread": [round(min(rates), 1), round(max(rates), 1)],
        "peak_rss_mb": round(statistics.median(result["peak_rss_mb"] for result in results), 1),
        "load_s": round(statistics.median(result["load_s"] for result in results), 2),
        "versions": results[0]["versions"],
        "options": results[0]["options"],
    }


def compare(ours: Side, peer: Side, items: Sequence[WorkItem], rounds: int) -> Result:
    """Run both sides in turns and return the comparison; the side that goes first alternates by round.

    Raises ValueError if a side did not generate exactly max_tokens for every request.
    """
    lengths = [item.max_tokens for item in items]
    output_tokens = sum(lengths)
    first: list[Result] = []
    second: list[Result] = []
    turns = [(ours, first), (peer, second)]
    for number in range(rounds):
        for side, results in turns if number % 2 == 0 else reversed(turns):
            result = side.turn()
            if [len(tokens) for tokens in result["outputs"]] != lengths:
                raise ValueError(f"{side.name} did not give every request exactly its max_tokens")
            results.append(result)
            rate = output_tokens / statistics.median(result["runs"])
            print(f"round {number}: {side.name} {side.dtype} {rate:.0f} out tok/s", file=sys.stderr)
    ratios = [
        statistics.median(other["runs"]) / statistics.median(mine["runs"])
        for mine, other in zip(first, second, strict=True)
    ]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "round_ratios": [round(ratio, 3) for ratio in ratios],
        "requests": len(items),
        "prompt_tokens": sum(len(item.prompt_ids) for item in items),
        "output_tokens": output_tokens,
        "same_tokens": round(agreement(first[0]["outputs"], second[0]["outputs"]), 3),
        "ours": summary(ours, first, output_tokens),
        "peer": summary(peer, second, output_tokens),
    }


def table(comparison: Result) -> str:
    """Return the comparison as lines of text."""
    heading = f"{'engine':<18} {'dtype':<6} {'out tok/s':>10} {'peak RSS MiB':>13}"
    rows = [
        f"{side['engine']:<18} {side['dtype']:<6} {side['out_tok_s']:>10.0f} {side['peak_rss_mb']:>13.0f}"
        for side in (comparison["ours"], comparison["peer"])
    ]
    share = f"{comparison['same_tokens']:.0%} of the outputs is the same up to the first difference"
    return "\n".join([heading, *rows, share])
