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

from worker.engine.distill.distillation import Distillation
from worker.engine.requests.errors import ConfigError, EngineError
from worker.engine.training.command import add_options, finish, recipe_of
from worker.engine.training.decoder import TrainableDecoder, check_is_new, stored_dtype
from worker.engine.training.scores import score
from worker.engine.training.text import read_text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m worker.engine.distill",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--teacher", type=Path, required=True, help="checkpoint directory")
    parser.add_argument("--draft", type=Path, required=True, help="checkpoint directory to begin with")
    add_options(parser)
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
    recipe = recipe_of(options, 2, min(teacher.config.max_position, draft.config.max_position))
    text = read_text(options.text, options.teacher, options.length)
    tests = text.tests(options.length)
    before = score(teacher, draft, tests)
    run = Distillation(recipe, teacher, draft, text)
    finish(run, options)
    draft.save(options.out, options.draft, stored_dtype(options.draft))
    return {
        "parameters": draft.num_parameters,
        "seconds": round(run.seconds, 1),
        "before": asdict(before),
        "after": asdict(score(teacher, draft, tests)),
    }


if __name__ == "__main__":
    sys.exit(main())
