"""Makes a small version of the demo model: a third of its layers, taught by the whole model for minutes."""

import json
import subprocess
import sys
import sysconfig
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.stated.setup import ROUNDS, in_turns, run_seconds
from benchmarks.workloads import WorkItem
from worker.engine.engine import Engine
from worker.engine.requests.config import EngineConfig
from worker.settings import DEMO_MODEL

LAYERS = 2  # of six
STEPS = 150
LEARNING_RATE = 0.003
PROMPT, OUTPUT = 64, 96  # tokens of the request that is timed


def last_line(module: str, *arguments: str) -> dict[str, Any]:
    """Run a module of the project and return its last line, which is JSON; raises CalledProcessError."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def texts() -> list[str]:
    """Return files that the demo model was trained on: modules of the standard library."""
    held_out = set(json.loads((DEMO_MODEL / "metrics.json").read_text("utf-8"))["heldout_sources"])
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return [str(file) for file in files if file.name not in held_out and not file.name.startswith("_")]


def distill_demo(folder: Path, steps: int = STEPS) -> Path:
    """Prune the demo model and teach the rest; return the checkpoint, which is written into a folder."""
    pruned, taught = folder / "pruned", folder / "distilled"
    of_text = ("--text", *texts())
    cut = ("--out", str(pruned), "--layers", str(LAYERS))
    last_line("worker.engine.prune", "--model", str(DEMO_MODEL), *cut, *of_text)
    models = ("--teacher", str(DEMO_MODEL), "--draft", str(pruned), "--out", str(taught))
    recipe = ("--steps", str(steps), "--learning-rate", str(LEARNING_RATE))
    last_line("worker.engine.distill", *models, *recipe, *of_text)
    return taught


def latencies(student: Path, rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Return the seconds that one request takes, by round, of the demo model and of a student of it."""
    engines = {
        name: Engine(EngineConfig(model=model, dtype="f32", enable_prefix_cache=False))
        for name, model in (("teacher", DEMO_MODEL), ("student", student))
    }
    item = WorkItem(tuple(range(3, 3 + PROMPT)), OUTPUT)
    return in_turns({name: partial(run_seconds, one, [item]) for name, one in engines.items()}, rounds)
