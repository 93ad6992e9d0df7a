"""A gpu worker that writes down each Step: `celery -A benchmarks.step_clock worker`, and who reads that.

When a batch's last token was there is known in that process only. What it costs is a line a Step.
"""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from worker.engine.engine import Engine
from worker.engine.scheduling.plan import StepOutput
from worker.tasks.run_shard import app
from worker.up import ROOT, read_procfile

__all__ = ["app"]

LOG_VARIABLE = "HEADRACE_BENCH_STEPS"


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A Step that chose tokens. `at` is the wall clock's time of its end."""

    at: float
    seconds: float
    tokens: int


def gpu_command(log: Path) -> dict[str, str]:
    """Return the Procfile's gpu command with the clock; sets where the Steps go, before it is started."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("")
    os.environ[LOG_VARIABLE] = str(log)
    return {
        "gpu": read_procfile(ROOT / "Procfile")["gpu"].replace(
            "worker.tasks.run_shard", "benchmarks.step_clock"
        )
    }


def read_steps(log: Path) -> list[TimedStep]:
    """Return the Steps so far that chose tokens."""
    return [TimedStep(*json.loads(line)) for line in log.read_text().splitlines() if line.endswith("]")]


def _install(log: TextIO) -> None:
    step = Engine.step

    def timed(self: Engine) -> StepOutput:
        started = time.perf_counter()
        output = step(self)
        if tokens := sum(output.num_new_tokens.values()):
            log.write(f"{json.dumps([time.time(), time.perf_counter() - started, tokens])}\n")
        return output

    Engine.step = timed  # type: ignore[method-assign]


if path := os.environ.get(LOG_VARIABLE):
    _install(Path(path).open("a", buffering=1))  # noqa: SIM115 - for as long as the process lives
