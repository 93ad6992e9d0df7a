"""Measures speculation and distillation by the commands that offer them."""

import json
import subprocess
import sys
import sysconfig
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.quality import CALIBRATION, DEMO
from benchmarks.stated.figures import MeasuredFigure
from benchmarks.stated.setup import Setup, in_turns, ratio, rounded, run_seconds
from benchmarks.workloads import WorkItem
from worker.engine.engine import Engine
from worker.engine.requests.config import EngineConfig

CASES = ("interactive", "sampled", "tail")
LAYERS = 2  # of the demo model's six, in the distilled model
STEPS = 150
PROMPT, OUTPUT = 64, 96


def last_line(module: str, *arguments: str) -> dict[str, Any]:
    """Run a module of the project and return its last line, which is JSON; raises CalledProcessError."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def speculation(setup: Setup) -> dict[str, MeasuredFigure]:
    """Run one greedy request with guessed tokens and without; other cases are beside it."""
    found = last_line("benchmarks.speculation", "--rounds", str(setup.rounds), "--cases", *CASES)
    return {"speculation": MeasuredFigure(1 - 1 / found["interactive"], {"ratios": found})}


def distillation(setup: Setup) -> dict[str, MeasuredFigure]:
    """Prune the demo model to a third of its layers, teach it for a few minutes, and compare the two."""
    library = Path(sysconfig.get_path("stdlib"))
    texts = [str(library / name) for name in CALIBRATION]
    with TemporaryDirectory() as folder:
        pruned, taught = Path(folder, "pruned"), Path(folder, "taught")
        of_text = ("--text", *texts)
        last_line(
            "worker.engine.prune",
            "--model",
            str(DEMO),
            "--out",
            str(pruned),
            "--layers",
            str(LAYERS),
            *of_text,
        )
        models = ("--teacher", str(DEMO), "--draft", str(pruned), "--out", str(taught))
        scores = last_line("worker.engine.distill", *models, "--steps", str(STEPS), *of_text)["after"]
        seconds = in_turns(
            {
                name: partial(
                    alone, Engine(EngineConfig(model=model, dtype="f32", enable_prefix_cache=False))
                )
                for name, model in (("teacher", DEMO), ("student", taught))
            },
            setup.rounds,
        )
    growth = scores["perplexity"] / scores["teacher_perplexity"] - 1
    details = rounded(seconds) | {"layers": LAYERS, "steps": STEPS}
    return {
        "distillation_latency": MeasuredFigure(1 - 1 / ratio(seconds, "teacher", "student"), details),
        "distillation_quality": MeasuredFigure(growth, {"steps": STEPS, **scores}),
    }


def alone(engine: Engine, turn: int) -> float:
    """Return the seconds of one request."""
    return run_seconds(engine, [WorkItem(tuple(range(3, 3 + PROMPT)), OUTPUT)], turn)
