"""Quantizes a checkpoint.

    python -m worker.engine.quantize --model DIR --out DIR
        --format int8|int8-static|int4|fp8|nf4|fp16|bf16|auto
        [--group-size 32|64|128] [--calibration TEXT_FILE] [--max-loss 0.5%]

int8 and fp8 have a scale a row, int4 a scale a group, nf4 a scale 64 weights, itself in int8. With a
calibration text, int4's and fp8's rounding errors are compensated on what the model reads there. int8-static
is int8 with ranges of activations, which are taken from that text. fp16 and bf16 store the weights as floats.

auto measures on that text what each product costs in each format, and mixes int4, int8 and the format that is
there to the fewest bytes that raise the perplexity by --max-loss at most.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from kernels.quantization.int4 import GROUP_SIZES
from worker.engine.quantize.calibration import Moments, input_scales, observe, read_windows
from worker.engine.quantize.formats import KINDS, WeightFormat
from worker.engine.quantize.mixing import find_formats, say_change, say_formats
from worker.engine.quantize.writer import FLOATS, cast_checkpoint, check, num_bytes_of, quantize_checkpoint
from worker.engine.requests.errors import EngineError

AUTO, STATIC = "auto", "int8-static"
READ_TEXT = ("int4", "fp8", STATIC, AUTO)
NEED_TEXT = (STATIC, AUTO)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m worker.engine.quantize",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face checkpoint directory")
    parser.add_argument("--format", choices=(*KINDS, STATIC, *FLOATS, AUTO), required=True)
    parser.add_argument("--out", type=Path, required=True, help="new directory")
    parser.add_argument("--group-size", type=int, choices=GROUP_SIZES, default=64, help="of int4")
    parser.add_argument(
        "--calibration", type=Path, help=f"text the model should know well; of {', '.join(READ_TEXT)}"
    )
    parser.add_argument(
        "--max-loss", type=_share, default=0.005, help="of auto: rise of the perplexity, as 0.5%% or 0.005"
    )
    options = parser.parse_args(arguments)
    if options.calibration is not None and options.format not in READ_TEXT:
        parser.error(f"--calibration: only {', '.join(READ_TEXT)} use it")
    if options.calibration is None and options.format in NEED_TEXT:
        parser.error(f"--calibration: {options.format} needs a text")
    try:
        num_bytes = _write(options)
        before = num_bytes_of(options.model)
    except (EngineError, OSError, ValueError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    sizes = f"{before / 1e6:.2f} MB of tensors before, {num_bytes / 1e6:.2f} MB after"
    print(f"{options.out}: {sizes}, ratio {before / num_bytes:.2f}, in {options.format}")
    return 0


def _write(options: argparse.Namespace) -> int:
    """Write the checkpoint as the options say; return the bytes of its tensors."""
    model, out, text = options.model, options.out, options.calibration
    check(model, out)  # before what takes long
    if options.format in FLOATS:
        return cast_checkpoint(model, out, options.format)
    windows = [] if text is None else read_windows(model, text.read_text(encoding="utf-8"))
    if options.format == AUTO:
        found = find_formats(model, windows, options.max_loss, print)
        print(f"{say_formats(found.formats, found.num_modules)}: {say_change(found.comparison)} on the text")
        return quantize_checkpoint(model, out, found.formats, moments=found.moments)
    if options.format == STATIC:
        scales = input_scales(model, windows)
        return quantize_checkpoint(model, out, WeightFormat("int8"), input_scales=scales)
    chosen = WeightFormat(options.format, options.group_size if options.format == "int4" else None)
    moments = observe(model, windows, Moments) if windows else None
    return quantize_checkpoint(model, out, chosen, moments=moments)


def _share(given: str) -> float:
    value = float(given.removesuffix("%")) / (100 if given.endswith("%") else 1)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"must be more than 0 and less than 100%, not {given}")
    return value


if __name__ == "__main__":
    sys.exit(main())
