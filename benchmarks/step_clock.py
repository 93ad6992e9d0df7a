"""Runs a gpu worker that records each Step, and reads the record: `celery -A benchmarks.step_clock worker`.

Only that process knows when a batch's last token was ready. The record costs one written line per Step.
"""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Condition
from typing import TextIO

from worker.engine.engine import Engine
from worker.engine.scheduling.plan import StepOutput
from worker.tasks.run_shard import app
from worker.up import ROOT, read_procfile

__all__ = ["app"]

LOG_VARIABLE = "HEADRACE_BENCH_STEPS"


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A Step that chose tokens; `at` is the wall-clock time of its end."""

    at: float
    seconds: float
    tokens: int


def gpu_command(log: Path) -> dict[str, str]:
    """Return the Procfile's gpu command with this clock; set the log's path for the worker it will start."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("")
    os.environ[LOG_VARIABLE] = str(log)
    return {
        "gpu": read_procfile(ROOT / "Procfile")["gpu"].replace(
            "worker.tasks.run_shard", "benchmarks.step_clock"
        )
    }


def read_steps(log: Path) -> list[TimedStep]:
    """Return the recorded Steps so far; a Step without new tokens is not recorded."""
    return [TimedStep(*json.loads(line)) for line in log.read_text().splitlines() if line.endswith("]")]


def _install(log: TextIO) -> None:
    step = Engine.step

    def timed(self: Engine, guard: Condition | None = None) -> StepOutput:
        started = time.perf_counter()
        output = step(self, guard)
        if tokens := sum(output.num_new_tokens.values()):
            log.write(f"{json.dumps([time.time(), time.perf_counter() - started, tokens])}\n")
        return output

    Engine.step = timed  # type: ignore[method-assign]


if path := os.environ.get(LOG_VARIABLE):
    _install(Path(path).open("a", buffering=1))  # noqa: SIM115 - for as long as the process lives
