"""Trains Medusa heads: small layers that guess a model's next tokens from the one before.

    python -m worker.engine.medusa MODEL --out DIR --text FILE [FILE ...] [--heads N]
        [--steps N] [--rows N] [--length N] [--learning-rate X] [--seed N] [--threads N]

The heads are written to medusa.safetensors in the directory `--out`; put the file beside the model's
checkpoint, and an engine that speculates uses it. To go on with a run that was stopped, start it again with
the same options. Beside the result is training.png, with the loss and the acceptance of the run. The last
line is JSON: the acceptance of each head on the last part of the text, which is not learned from, before
and after.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from worker.engine.medusa.head_training import HeadTraining, acceptance
from worker.engine.models.medusa_heads import MedusaHeads
from worker.engine.requests.errors import CheckpointError, EngineError
from worker.engine.training.command import add_options, finish, recipe_of
from worker.engine.training.decoder import TrainableDecoder, stored_dtype
from worker.engine.training.text import read_text
from worker.values.model_files import HEADS_FILE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m worker.engine.medusa",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, help="checkpoint directory")
    parser.add_argument("--heads", type=int, default=4, help="tokens to guess; default: 4")
    add_options(parser)
    options = parser.parse_args(arguments)
    try:
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        print(json.dumps(train(options)))
    except (EngineError, OSError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


def train(options: argparse.Namespace) -> dict[str, object]:
    """Run, and write the heads; return their acceptance before and after."""
    if (options.out / HEADS_FILE).exists():
        raise CheckpointError(options.out / HEADS_FILE, "", "is there already")
    model = TrainableDecoder.load(options.model)
    if options.heads < 1:
        raise ValueError("heads must be at least 1")
    recipe = recipe_of(options, options.heads + 2, model.config.max_position)
    text = read_text(options.text, options.model, options.length)
    heads = MedusaHeads.new(options.heads, model.config.hidden_size)
    tests = text.tests(options.length)
    before = acceptance(model, heads, tests)
    run = HeadTraining(recipe, model, heads, text)
    finish(run, options)
    heads.save(options.out, stored_dtype(options.model))
    return {
        "parameters": heads.weights.numel() + heads.biases.numel(),
        "seconds": round(run.seconds, 1),
        "before": before,
        "after": acceptance(model, heads, tests),
    }


if __name__ == "__main__":
    sys.exit(main())
