"""Cuts the least important layers, hidden values and inner values out of a decoder.

    python -m worker.engine.prune --model DIR --out DIR --text FILE [FILE ...]
        [--layers N] [--hidden N] [--intermediate N]

What is least important is measured on the text. The result predicts badly until it is distilled
(python -m worker.engine.distill). The last line is JSON: its parameters, and its scores on the last part of
the text.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from worker.engine.prune.pruning import measure, prune
from worker.engine.requests.errors import EngineError
from worker.engine.training.decoder import TrainableDecoder, check_is_new, stored_dtype
from worker.engine.training.scores import score
from worker.engine.training.text import read_text

LENGTH, NUM_ROWS = 512, 32  # of the text that the importance is measured on


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m worker.engine.prune",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face checkpoint directory")
    parser.add_argument("--out", type=Path, required=True, help="new directory")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="text the model should know")
    parser.add_argument("--layers", type=int, help="layers to keep; default: all")
    parser.add_argument("--hidden", type=int, help="hidden values to keep; default: all")
    parser.add_argument("--intermediate", type=int, help="inner values of a layer to keep; default: all")
    parser.add_argument("--seed", type=int, default=0, help="chooses the rows of text")
    options = parser.parse_args(arguments)
    try:
        check_is_new(options.out)
        model = TrainableDecoder.load(options.model)
        length = min(LENGTH, model.config.max_position)
        text = read_text(options.text, options.model, length)
        importance = measure(model, text.rows(options.seed, 0, NUM_ROWS, length))
        pruned = prune(
            model,
            importance,
            options.layers or model.config.num_layers,
            options.hidden or model.config.hidden_size,
            options.intermediate or model.config.intermediate_size,
        )
        pruned.save(options.out, options.model, stored_dtype(options.model))
    except (EngineError, OSError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print("layers, by importance:", " ".join(f"{value:.3f}" for value in importance.layers.tolist()))
    sizes = {"parameters": pruned.num_parameters, "of": model.num_parameters}
    print(json.dumps(sizes | asdict(score(model, pruned, text.tests(length)))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
