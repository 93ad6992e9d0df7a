"""Runs a TrainingRun from a command line: its options, its state beside the result, and what it shows."""

import argparse
import sys
from pathlib import Path

from worker.drawing import NEEDED
from worker.engine.requests.errors import ConfigError
from worker.engine.training.picture import write_png
from worker.engine.training.run import Recipe, TrainingRun

STATE, PICTURE = "run.pt", "training.png"
BAR, REPORTS = 30, 100  # characters of the progress bar; lines of progress in a run, off a terminal


class ProgressBar:
    """Shows how far a run is: one line that changes on a terminal, otherwise new lines."""

    def __init__(self, run: TrainingRun) -> None:
        self._run = run
        self._first, self._first_seconds = run.step, run.seconds
        self._loss: float | None = None

    def __call__(self, loss: float) -> None:
        """Show the state after a step."""
        self._loss = loss if self._loss is None else 0.95 * self._loss + 0.05 * loss
        step, steps = self._run.step, self._run.recipe.steps
        is_terminal = sys.stderr.isatty()
        if not is_terminal and step % max(1, steps // REPORTS) and step != steps:
            return
        each = (self._run.seconds - self._first_seconds) / (step - self._first)
        done = BAR * step // steps
        line = (
            f"[{'#' * done}{'.' * (BAR - done)}] {step}/{steps}, loss {self._loss:.4f}, "
            f"{each * (steps - step) / 60:.1f} minutes left"
        )
        end = "\n" if not is_terminal or step == steps else ""
        sys.stderr.write(f"\r\x1b[K{line}{end}" if is_terminal else f"{line}{end}")
        sys.stderr.flush()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every run has."""
    parser.add_argument(
        "--out", type=Path, required=True, help="directory of the result and of the run's state"
    )
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="files to learn from")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=8, help="of a step")
    parser.add_argument("--length", type=int, default=256, help="of a row, in tokens")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0, help="chooses the rows of text")
    parser.add_argument("--threads", type=int, help="default: torch's own choice")
    parser.add_argument("--save-seconds", type=float, default=120.0, help="between two saved states")


def recipe_of(options: argparse.Namespace, least: int, most: int) -> Recipe:
    """Return the recipe of the options; raise ConfigError if rows have not from `least` to `most` tokens."""
    if not (least <= options.length <= most and options.steps > 0 and options.rows > 0):
        raise ConfigError(f"length must be from {least} to {most}, steps and rows at least 1")
    return Recipe(options.steps, options.rows, options.length, options.learning_rate, options.seed)


def finish(run: TrainingRun, options: argparse.Namespace) -> None:
    """Take a run to its end, from its state in `options.out` if there is one; draw how it went there."""
    options.out.mkdir(parents=True, exist_ok=True)
    state = options.out / STATE
    if state.exists():
        run.load(state)
    run.run(state, options.save_seconds, ProgressBar(run))
    if not write_png(options.out / PICTURE, run.losses, run.acceptance):
        sys.stderr.write(f"{PICTURE} {NEEDED}\n")
