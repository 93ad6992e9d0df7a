"""Measures the quality loss of quantization: the demo model's perplexity on its held-out text by format.

    python -m benchmarks.quality [--tokens N]

`worker.engine.quantize` writes each checkpoint and the loader reads it. int8 also quantizes tokens, as the
CPU's int8 product does; fp8 rounds tokens to fp8 before each product, as a GPU's product would. The rest runs
in bf16. The last line is JSON: perplexity, bytes of weights, bytes of KV cache per token.
"""

import argparse
import json
import sysconfig
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from tokenizers import Tokenizer
from torch import Tensor

from kernels.kv_write import LayerCache
from kernels.paged_attention import paged_attention
from kernels.quantization import quantize_heads
from kernels.quantize_tokens import quantize_tokens
from models.demo import heldout
from worker.engine.models.checkpoint import Weights
from worker.engine.models.layers.linear import Projection
from worker.engine.quantize.__main__ import read_moments
from worker.engine.quantize.text_forward import TextForward
from worker.engine.quantize.writer import quantize_checkpoint

DEMO = Path(heldout.__file__).parent
WINDOW = 1024
# Modules of the standard library, which the model was trained on; none of them is held out.
CALIBRATION = ("argparse.py", "threading.py", "http/client.py", "json/encoder.py", "tarfile.py", "random.py")
CALIBRATION_CHARACTERS = 20_000  # of each


@dataclass(slots=True)
class Rounded:
    """A linear layer that rounds its tokens to fp8 before the product."""

    projection: Projection
    out_features: int

    def __call__(self, x: Tensor) -> Tensor:
        """Return [num_tokens, out_features] for `x` [num_tokens, in_features]."""
        levels, scales = quantize_tokens(x, torch.float8_e4m3fn)
        return self.projection((levels.float() * scales).to(x.dtype))


class RoundedWeights(Weights):
    """Weights whose products round their tokens to fp8."""

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
        return projection if is_exact else Rounded(projection, projection.out_features)


def int8_cache() -> AbstractContextManager[object]:
    """Make attention read keys and values rounded to int8 with one scale per token and head."""

    def attend(query: Tensor, cache: LayerCache, *arguments: object, **options: object) -> Tensor:
        for stored, axis in ((cache.keys.transpose(2, 3), 3), (cache.values, 3)):
            heads = quantize_heads(stored.reshape(-1, 1, stored.shape[axis]))
            stored.copy_(heads.dequantize().view(stored.shape))
        return attend_exactly(query, cache, *arguments, **options)

    attend_exactly: Callable[..., Tensor] = paged_attention
    return patch("worker.engine.models.layers.attention.paged_attention", attend)


def perplexity(forward: TextForward, max_tokens: int | None) -> float:
    """Return the held-out perplexity as `models/demo/heldout.py` defines it."""
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    text = (DEMO / "heldout.txt").read_text(encoding="utf-8")

    def logits_of(ids: Tensor) -> Tensor:
        return forward.model.logits(forward.hidden(ids[0])).unsqueeze(0)

    scores = heldout.perplexity(logits_of, tokenizer, text, window=WINDOW, max_tokens=max_tokens)
    return float(scores["perplexity"])


def measure(max_tokens: int | None) -> dict[str, dict[str, float | int]]:
    """Return perplexity and bytes by format."""
    library = Path(sysconfig.get_path("stdlib"))
    texts = [(library / name).read_text(encoding="utf-8") for name in CALIBRATION]
    moments = read_moments(DEMO, "".join(text[:CALIBRATION_CHARACTERS] for text in texts))
    results: dict[str, dict[str, float | int]] = {}
    with tempfile.TemporaryDirectory() as folder:

        def add(
            name: str,
            directory: Path,
            num_bytes: int,
            make_weights: Callable[[Path, torch.dtype], Weights] = Weights,
            context: AbstractContextManager[object] | None = None,
        ) -> None:
            forward = TextForward(directory, WINDOW, torch.bfloat16, make_weights)
            keys = forward.kv_cache[0].keys
            _, num_kv_heads, head_dim, _ = keys.shape
            head_bytes = head_dim + 4 if context else 2 * head_dim
            with context or nullcontext():
                value = perplexity(forward, max_tokens)
            results[name] = {
                "ppl": round(value, 4),
                "bytes": num_bytes,
                "kv_bytes_per_token": 2 * num_kv_heads * head_bytes * len(forward.kv_cache),
            }

        def quantized(name: str, format_: str, **options: object) -> tuple[Path, int]:
            out = Path(folder, name)
            return out, quantize_checkpoint(DEMO, out, format_, **options)  # type: ignore[arg-type]

        whole = (DEMO / "model.safetensors").stat().st_size
        add("bf16", DEMO, whole)
        add("int8", *quantized("int8", "int8"), partial(Weights, eight_bits="int8"))
        add("fp8", *quantized("fp8", "fp8"), RoundedWeights)
        add("fp8_weights", *quantized("fp8_weights", "fp8"))
        add("fp8_compensated", *quantized("fp8_compensated", "fp8", moments=moments), RoundedWeights)
        add("int4", *quantized("int4", "int4"))
        add("int4_compensated", *quantized("int4_compensated", "int4", moments=moments))
        add("nf4", *quantized("nf4", "nf4"))
        add("int8_kv", DEMO, whole, context=int8_cache())
    return results


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=None, help="of the held-out text; default: all of it")
    results = measure(parser.parse_args().tokens)
    exact = results["bf16"]["ppl"]
    print(f"{'format':18} {'perplexity':>10} {'change':>8} {'weights':>10} {'KV a token':>10}")
    for name, row in results.items():
        change = 100 * (row["ppl"] / exact - 1)
        print(
            f"{name:18} {row['ppl']:10.4f} {change:+7.2f}% {row['bytes'] / 1e6:7.2f} MB "
            f"{row['kv_bytes_per_token']:8} B"
        )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
