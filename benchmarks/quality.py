"""Measures the quality loss of quantization: the demo model's perplexity on its held-out text by format.

    python -m benchmarks.quality [--tokens N] [--max-loss 0.005] [--steps 150] [--only FORMAT ...]

`worker.engine.quantize` writes each checkpoint and the loader reads it. int8 also quantizes tokens, as the
CPU's int8 product does, and int8_static by ranges; fp8 rounds tokens to fp8 before each product, as a GPU's
product would. int8_kv and int8_with_kv keep keys and values in int8, beside weights in bf16 and in int8.
auto mixes formats to the fewest bytes within --max-loss. The rest runs in bf16. distilled is
a third of the layers, which the whole model has taught for --steps. The last line is JSON:
perplexity, the interval of its rise, the divergence from the exact model in nats a token, bytes of weights,
bytes of KV cache per token; of auto, whether it is smaller than int8 and within the loss; of distilled, how
many times as fast one request is.
"""

import argparse
import json
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from benchmarks.distilled import STEPS, distill_demo, latencies
from benchmarks.stated.setup import ratio
from kernels.quantize_tokens import quantize_tokens
from models.demo import heldout
from worker.engine.models.checkpoint import Weights
from worker.engine.models.layers.linear import Projection
from worker.engine.quantize.calibration import LARGEST, Moments, input_scales, observe, read_windows
from worker.engine.quantize.formats import WeightFormat
from worker.engine.quantize.logits import LogitComparison
from worker.engine.quantize.mixing import find_formats, say_formats
from worker.engine.quantize.text_forward import TextForward
from worker.engine.quantize.writer import cast_checkpoint, num_bytes_of, quantize_checkpoint
from worker.quality.text import TextComparison

DEMO = Path(heldout.__file__).parent
WINDOW = 1024
# Modules of the standard library, which the model was trained on; none of them is held out.
CALIBRATION = ("argparse.py", "threading.py", "http/client.py", "json/encoder.py", "tarfile.py", "random.py")
CALIBRATION_CHARACTERS = 20_000  # of each
MAX_LOSS = 0.005  # of auto
NAMES = (
    "bf16",
    "fp16",
    "int8",
    "int8_with_kv",
    "int8_static",
    "fp8",
    "fp8_weights",
    "fp8_compensated",
    "int4",
    "int4_compensated",
    "nf4",
    "auto",
    "int8_kv",
    "distilled",
)


@dataclass(slots=True)
class Rounded:
    """A linear layer that rounds its tokens before the product."""

    projection: Projection
    to_rounded: Callable[[Tensor], Tensor]
    out_features: int = field(init=False)

    def __post_init__(self) -> None:
        self.out_features = self.projection.out_features

    def __call__(self, x: Tensor) -> Tensor:
        """Return [num_tokens, out_features] for `x` [num_tokens, in_features]."""
        return self.projection(self.to_rounded(x.float()).to(x.dtype))


class RoundedWeights(Weights):
    """Weights whose products round their tokens, by the first module of the product."""

    def __init__(
        self, directory: Path, dtype: torch.dtype, to_rounded: Callable[[str], Callable[[Tensor], Tensor]]
    ) -> None:
        super().__init__(directory, dtype)
        self._to_rounded = to_rounded

    def linear(
        self,
        names: list[str],
        rows: list[int],
        columns: int,
        *,
        has_bias: bool = False,
        is_exact: bool = False,
    ) -> Projection:
        """Return the projection; it rounds its tokens unless `is_exact`."""
        projection = super().linear(names, rows, columns, has_bias=has_bias, is_exact=is_exact)
        return projection if is_exact else Rounded(projection, self._to_rounded(names[0]))


def by_token(_: str) -> Callable[[Tensor], Tensor]:
    """Return what rounds tokens to fp8, each by its largest value."""

    def to_rounded(x: Tensor) -> Tensor:
        levels, scales = quantize_tokens(x, torch.float8_e4m3fn)
        return levels.float() * scales

    return to_rounded


def by_range(scales: Mapping[str, float], module: str) -> Callable[[Tensor], Tensor]:
    """Return what rounds tokens to int8, all by the scale of their product."""
    scale = scales[module]
    return lambda x: (x / scale).round().clamp(-LARGEST, LARGEST) * scale


class HeldOut:
    """The held-out text, with what the exact model makes of it."""

    def __init__(self, max_tokens: int | None) -> None:
        self._max_tokens = max_tokens
        self._tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
        self._text = (DEMO / "heldout.txt").read_text(encoding="utf-8")
        self._exact = TextForward(DEMO, WINDOW, torch.bfloat16)
        self._states: list[Tensor] = []  # by window

    def score(self, forward: TextForward) -> tuple[float, TextComparison]:
        """Return the perplexity as `models/demo/heldout.py` defines it, and what has changed."""
        compared, place = LogitComparison(), count()

        def logits_of(ids: Tensor) -> Tensor:
            window = next(place)
            if window == len(self._states):
                self._states.append(self._exact.hidden(ids[0]))
            logits = forward.model.logits(forward.hidden(ids[0]))
            exact = self._exact.model.logits(self._states[window])
            compared.add(exact[:-1], logits[:-1], ids[0, 1:])
            return logits.unsqueeze(0)

        scores = heldout.perplexity(
            logits_of, self._tokenizer, self._text, window=WINDOW, max_tokens=self._max_tokens
        )
        return round(float(scores["perplexity"]), 4), compared.result()

    def row(
        self,
        directory: Path,
        make_weights: Callable[[Path, torch.dtype], Weights] = Weights,
        kv_dtype: torch.dtype | None = None,
    ) -> dict[str, Any]:
        """Return what a checkpoint, read by `make_weights`, makes of the text with a KV cache of a dtype."""
        forward = TextForward(directory, WINDOW, torch.bfloat16, make_weights, kv_dtype)
        perplexity, found = self.score(forward)
        num_slots = forward.kv_cache[0].num_slots
        return {
            "ppl": perplexity,
            "rise": [round(bound, 5) for bound in found.change_interval],
            "divergence": round(found.divergence, 6),
            "kv_bytes_per_token": sum(cache.num_bytes for cache in forward.kv_cache) // num_slots,
        }


def calibration_text() -> str:
    """Return text of the standard library that the model was trained on."""
    library = Path(sysconfig.get_path("stdlib"))
    texts = [(library / name).read_text(encoding="utf-8") for name in CALIBRATION]
    return "".join(text[:CALIBRATION_CHARACTERS] for text in texts)


@dataclass(frozen=True, slots=True)
class Formats:
    """The checkpoints of a folder, each written when it is asked for, and what they make of a text."""

    folder: Path
    held_out: HeldOut
    max_loss: float
    steps: int

    def rows(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """Return what measures each format, by name."""
        windows = cache(lambda: read_windows(DEMO, calibration_text()))
        moments = cache(lambda: observe(DEMO, windows(), Moments))
        scales = cache(lambda: input_scales(DEMO, windows()))
        int8, fp8, int4 = WeightFormat("int8"), WeightFormat("fp8"), WeightFormat("int4", 64)
        tokens = partial(RoundedWeights, to_rounded=by_token)
        eight_bits = partial(Weights, eight_bits="int8")

        def by_ranges(directory: Path, dtype: torch.dtype) -> Weights:
            return RoundedWeights(directory, dtype, partial(by_range, scales()))

        row, one = self._row, self._quantized
        exact = cache(lambda: row(DEMO, num_bytes_of(DEMO)))
        return {
            "bf16": exact,
            "fp16": lambda: row(self.folder / "fp16", cast_checkpoint(DEMO, self.folder / "fp16", "fp16")),
            "int8": lambda: row(*one("int8", int8), eight_bits),
            "int8_with_kv": lambda: row(*one("int8_with_kv", int8), eight_bits, kv_dtype=torch.int8),
            "int8_static": lambda: row(*one("int8_static", int8, input_scales=scales()), by_ranges),
            "fp8": lambda: row(*one("fp8", fp8), tokens),
            "fp8_weights": lambda: row(*one("fp8_weights", fp8)),
            "fp8_compensated": lambda: row(*one("fp8_compensated", fp8, moments=moments()), tokens),
            "int4": lambda: row(*one("int4", int4)),
            "int4_compensated": lambda: row(*one("int4_compensated", int4, moments=moments())),
            "nf4": lambda: row(*one("nf4", WeightFormat("nf4"))),
            "auto": lambda: self._auto(windows(), exact()["ppl"]),
            "int8_kv": lambda: row(DEMO, num_bytes_of(DEMO), kv_dtype=torch.int8),
            "distilled": self._distilled,
        }

    def _row(self, directory: Path, num_bytes: int, *how: Any, **cache: Any) -> dict[str, Any]:
        return self.held_out.row(directory, *how, **cache) | {"bytes": num_bytes}

    def _quantized(
        self, name: str, formats: WeightFormat | Mapping[str, WeightFormat], **options: Any
    ) -> tuple[Path, int]:
        out = self.folder / name
        return out, quantize_checkpoint(DEMO, out, formats, **options)

    def _auto(self, windows: Sequence[Tensor], exact: float) -> dict[str, Any]:
        mixture = find_formats(DEMO, windows, self.max_loss)
        found = self._row(*self._quantized("auto", mixture.formats, moments=mixture.moments))
        plain = quantize_checkpoint(DEMO, self.folder / "plain", WeightFormat("int8"))
        return found | {
            "formats": say_formats(mixture.formats, mixture.num_modules),
            "int8_bytes": plain,
            "is_smaller_than_int8": found["bytes"] < plain,
            "is_within_loss": found["ppl"] / exact - 1 <= self.max_loss,
        }

    def _distilled(self) -> dict[str, Any]:
        student = distill_demo(self.folder, self.steps)
        speedup = ratio(latencies(student), "teacher", "student")
        return self._row(student, num_bytes_of(student)) | {"speedup": round(speedup, 3)}


def measure(
    max_tokens: int | None,
    max_loss: float = MAX_LOSS,
    steps: int = STEPS,
    only: Sequence[str] = NAMES,
) -> dict[str, dict[str, Any]]:
    """Return perplexity, divergence and bytes by format, of the exact one and of those in `only`."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        rows = Formats(Path(folder), HeldOut(max_tokens), max_loss, steps).rows()
        for name in rows:
            if name in {NAMES[0], *only}:
                started = time.perf_counter()
                found[name] = rows[name]()
                print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=None, help="of the held-out text; default: all of it")
    parser.add_argument("--max-loss", type=float, default=MAX_LOSS, help="of auto: share of the perplexity")
    parser.add_argument("--steps", type=int, default=STEPS, help="of distilled")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="formats beside bf16")
    options = parser.parse_args()
    results = measure(options.tokens, options.max_loss, options.steps, options.only)
    exact = results["bf16"]["ppl"]
    print(
        f"{'format':18} {'perplexity':>10} {'change':>8} {'interval':>18} {'divergence':>10} {'weights':>10}"
        f" {'KV a token':>10}"
    )
    for name, row in results.items():
        low, high = row["rise"]
        print(
            f"{name:18} {row['ppl']:10.4f} {row['ppl'] / exact - 1:+8.2%} {low:+8.2%} to {high:+6.2%} "
            f"{row['divergence']:10.6f} {row['bytes'] / 1e6:7.2f} MB {row['kv_bytes_per_token']:8} B"
        )
    if (mixed := results.get("auto")) is not None:
        print(f"auto: {mixed['formats']}")
        print(
            f"auto: {mixed['bytes'] / 1e6:.2f} MB, int8: {mixed['int8_bytes'] / 1e6:.2f} MB; perplexity"
            f" {mixed['ppl'] / exact - 1:+.2%}, allowed {options.max_loss:+.2%}"
        )
    if "distilled" in results:
        print(f"distilled: one request is {results['distilled']['speedup']:.2f} times as fast")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
