"""Fills an op's crossover table of this GPU's chip with the fastest regime for each number of tokens."""

import datetime
import json
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import torch
from triton.runtime.errors import OutOfResources

from kernels.benchmarking import time_call
from kernels.crossover import Regime
from kernels.device import chip_name

REPEATS = 5
MAX_PROCESSES = 16  # each takes half a gigabyte of the GPU


def runnable(candidates: Sequence[Regime], run: Callable[[Regime], None]) -> list[Regime]:
    """Return the candidates for which the GPU has the shared memory, compiled by many processes at once.

    `run`, a function of a module, runs a regime for every shape; another process calls it.
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(os.cpu_count() or 1, MAX_PROCESSES), mp_context=spawn) as pool:
        fits = list(pool.map(_Fits(run), candidates))
    return [one for one, does_fit in zip(candidates, fits, strict=True) if does_fit]


class _Fits:
    def __init__(self, run: Callable[[Regime], None]) -> None:
        self._run = run

    def __call__(self, regime: Regime) -> bool:
        try:
            self._run(regime)
        except OutOfResources:
            return False
        return True


def fastest(
    candidates: Sequence[Regime], calls: Callable[[Regime], Sequence[Callable[[], object]]]
) -> Regime:
    """Return the candidate whose calls, one per shape, take the least total time."""
    times = {
        regime: sum(time_call(call, repeats=REPEATS).microseconds for call in calls(regime))
        for regime in candidates
    }
    return min(times, key=times.__getitem__)


def write_crossover(folder: Path, formats: dict[str, dict[int, Regime]]) -> Path:
    """Write the fastest regimes by format and number of tokens; return the file. The last has no limit."""
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
    table = {"gpu": torch.cuda.get_device_name(), "measured": today, "formats": rows}
    file = folder / f"{chip_name(torch.device('cuda'))}.json"
    file.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    return file
