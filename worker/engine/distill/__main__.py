"""Teaches a draft to predict what its teacher predicts.

    python -m worker.engine.distill --teacher DIR --draft DIR --out DIR --text FILE [FILE ...]
        [--steps N] [--rows N] [--length N] [--learning-rate X] [--seed N] [--threads N]

The draft is a checkpoint with the teacher's tokenizer, such as `python -m worker.engine.prune` writes. To go
on with a run that was stopped, start it again with the same options. Beside the result is training.png, with
the loss and the acceptance of the run. The last line is JSON: scores on the last part of the text, which is
not learned from, before and after.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from worker.engine.distill.distillation import Distillation, Recipe
from worker.engine.distill.picture import write_png
from worker.engine.requests.errors import ConfigError, EngineError
from worker.engine.training.decoder import TrainableDecoder, check_is_new, stored_dtype
from worker.engine.training.scores import score
from worker.engine.training.text import read_text

STATE, PICTURE = "run.pt", "training.png"
BAR, REPORTS = 30, 100  # characters of the progress bar; lines of progress in a run, off a terminal


class ProgressBar:
    """Shows how far a run is: one line that changes on a terminal, otherwise new lines."""

    def __init__(self, run: Distillation) -> None:
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
        print(f"\r\x1b[K{line}" if is_terminal else line, end=end, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m worker.engine.distill",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--teacher", type=Path, required=True, help="checkpoint directory")
    parser.add_argument("--draft", type=Path, required=True, help="checkpoint directory to begin with")
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
    options = parser.parse_args(arguments)
    try:
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        print(json.dumps(distill(options)))
    except (EngineError, OSError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


def distill(options: argparse.Namespace) -> dict[str, object]:
    """Run, and write the distilled draft; return its scores before and after."""
    check_is_new(options.out)
    teacher, draft = TrainableDecoder.load(options.teacher), TrainableDecoder.load(options.draft)
    if draft.config.vocab_size != teacher.config.vocab_size:
        raise ConfigError(
            f"the draft has {draft.config.vocab_size} tokens, its teacher {teacher.config.vocab_size}"
        )
    most = min(teacher.config.max_position, draft.config.max_position)
    if not (1 < options.length <= most and options.steps > 0 and options.rows > 0):
        raise ConfigError(f"length must be from 2 to {most}, steps and rows at least 1")
    text = read_text(options.text, options.teacher, options.length)
    tests = text.tests(options.length)
    before = score(teacher, draft, tests)
    recipe = Recipe(options.steps, options.rows, options.length, options.learning_rate, options.seed)
    run = Distillation(recipe, teacher, draft, text)
    options.out.mkdir(parents=True, exist_ok=True)
    state = options.out / STATE
    if state.exists():
        run.load(state)
    run.run(state, options.save_seconds, ProgressBar(run))
    if not write_png(options.out / PICTURE, run.losses, run.acceptance):
        print(f"{PICTURE} needs matplotlib: pip install 'headrace[tune]'", file=sys.stderr)
    draft.save(options.out, options.draft, stored_dtype(options.draft))
    return {
        "parameters": draft.num_parameters,
        "seconds": round(run.seconds, 1),
        "before": asdict(before),
        "after": asdict(score(teacher, draft, tests)),
    }


if __name__ == "__main__":
    sys.exit(main())
