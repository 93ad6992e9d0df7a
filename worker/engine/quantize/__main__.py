"""Quantizes a checkpoint.

    python -m worker.engine.quantize --model DIR --format int8|int4|fp8|nf4 --out DIR
        [--group-size 32|64|128] [--calibration TEXT_FILE]

int8 and fp8 have a scale a row, int4 a scale a group, nf4 a scale 64 weights, itself in int8. With a
calibration text, int4's and fp8's rounding errors are compensated on what the model reads there.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer

from kernels.quantization.int4 import GROUP_SIZES
from worker.engine.models.checkpoint import read_json
from worker.engine.quantize.calibration import Moments, calibrate
from worker.engine.quantize.writer import FORMATS, quantize_checkpoint
from worker.engine.requests.errors import EngineError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m worker.engine.quantize",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face checkpoint directory")
    parser.add_argument("--format", choices=FORMATS, required=True)
    parser.add_argument("--out", type=Path, required=True, help="new directory")
    parser.add_argument("--group-size", type=int, choices=GROUP_SIZES, default=64, help="of int4")
    parser.add_argument("--calibration", type=Path, help="text the model should know well; int4 and fp8")
    options = parser.parse_args(arguments)
    if options.calibration is not None and options.format not in {"int4", "fp8"}:
        parser.error("--calibration: only int4 and fp8 use it")
    try:
        moments = None
        if options.calibration is not None:
            moments = read_moments(options.model, options.calibration.read_text(encoding="utf-8"))
        num_bytes = quantize_checkpoint(
            options.model, options.out, options.format, group_size=options.group_size, moments=moments
        )
    except (EngineError, OSError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(f"{options.out}: {num_bytes / 1e6:.1f} MB of tensors in {options.format}")
    return 0


def read_moments(model: Path, text: str) -> dict[str, Moments]:
    """Return the moments of the model's inputs on a text; raises CheckpointError, OSError or ValueError."""
    begin = read_json(model / "config.json").get("bos_token_id")
    tokenizer = Tokenizer.from_buffer((model / "tokenizer.json").read_bytes())
    ids = torch.tensor(tokenizer.encode(text, add_special_tokens=False).ids)
    if not len(ids):
        raise ValueError("the calibration text has no tokens")
    return calibrate(model, ids, begin if isinstance(begin, int) else None)


if __name__ == "__main__":
    sys.exit(main())
