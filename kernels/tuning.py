"""Fills an op's crossover table on this GPU with the fastest regime for each number of tokens."""

import datetime
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from kernels.benchmarking import time_call
from kernels.crossover import Regime


def fastest(
    candidates: Sequence[Regime], calls: Callable[[Regime], Sequence[Callable[[], object]]]
) -> Regime:
    """Return the candidate whose calls, one per shape, take the least total time."""
    times = {
        regime: sum(time_call(call, repeats=20).microseconds for call in calls(regime))
        for regime in candidates
    }
    return min(times, key=times.__getitem__)


def write_crossover(folder: Path, formats: dict[str, dict[int, Regime]]) -> Path:
    """Write the fastest regimes by format and number of tokens; return the file. The last has no limit."""
    gpu = torch.cuda.get_device_name()
    rows: dict[str, list[dict[str, object]]] = {}
    for name, found in formats.items():
        kept: list[Regime] = []
        for num_tokens, regime in sorted(found.items()):
            limited = replace(regime, max_tokens=num_tokens)
            if kept and replace(kept[-1], max_tokens=num_tokens) == limited:
                kept[-1] = limited
            else:
                kept.append(limited)
        rows[name] = [asdict(one) for one in [*kept[:-1], replace(kept[-1], max_tokens=None)]]
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    file = folder / f"{gpu.replace(' ', '_').replace('/', '_')}.json"
    file.write_text(
        json.dumps({"gpu": gpu, "measured": today, "formats": rows}, indent=2) + "\n", encoding="utf-8"
    )
    return file
