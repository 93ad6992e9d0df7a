r"""Compares the products of quantized checkpoints on a CPU with those of bfloat16, float32 and int8.

    python -m benchmarks.narrow_weights --model DIR [--dtype bf16|f32] [--threads N] [--rows 1 4 16 32 64]

Weights are random, of the sizes in DIR/config.json. Those of 4 or 8 bits stay as narrow as a checkpoint has
them, for activations in --dtype; int8 quantizes activations too. In each round every format runs all layers'
products once, as the engine does, without attention, norms and activations. The last line is JSON: the median
milliseconds of a format by the number of rows.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernels.quantization import quantize_fp8, quantize_int4, quantize_int8, quantize_nf4
from worker.engine.models.layers.linear import Projection
from worker.engine.models.products import Products
from worker.engine.models.registry import read_architecture
from worker.engine.requests.errors import EngineError

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
CPU = torch.device("cpu")


def largest_groups(weight: Tensor) -> Any:
    """Return the weight at int4, in groups of 128 columns, or of 64 or 32 where its width asks for them."""
    return quantize_int4(weight, group_size=next(one for one in (128, 64, 32) if weight.shape[1] % one == 0))


FORMATS: dict[str, Callable[[Tensor], Any]] = {
    "bf16": Tensor.bfloat16,
    "f32": Tensor.float,
    "int8": quantize_int8,
    "int4": largest_groups,
    "nf4": quantize_nf4,
    "int8_zero_points": partial(quantize_int8, is_symmetric=False),
    "fp8": quantize_fp8,
}


def sizes_of(model: Path) -> list[tuple[int, int]]:
    """Return [out_features, in_features] of each product of a model's layers."""
    shape = read_architecture(model)
    width: int = json.loads((model / "config.json").read_text())["intermediate_size"]
    hidden, attention = shape.hidden_size, shape.num_heads * shape.head_dim
    qkv = attention + 2 * shape.num_kv_heads * shape.head_dim
    layer = [(qkv, hidden), (hidden, attention), (2 * width, hidden), (hidden, width)]
    return layer * shape.num_layers


def products_of(name: str, dtype: str) -> Products:
    """Return what makes the products of a format, whose activations are in a dtype."""
    own = name if name in DTYPES else dtype
    return Products(DTYPES[own], is_gpu=False, device=CPU, eight_bits="int8" if name == "int8" else None)


def layers_of(name: str, sizes: Sequence[tuple[int, int]], products: Products) -> list[Projection]:
    """Return products with random weights of these sizes in a format."""
    weights = (torch.randn(size) / size[1] ** 0.5 for size in sizes)
    return [products.make(FORMATS[name](weight), None) for weight in weights]


def measure(sizes: Sequence[tuple[int, int]], options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the median milliseconds that all products take, by the rows and by the format."""
    products = {name: products_of(name, options.dtype) for name in FORMATS}
    layers = {name: layers_of(name, sizes, one) for name, one in products.items()}
    torch.set_num_threads(options.threads)
    found: dict[str, dict[str, float]] = {}
    for num_rows in options.rows:
        x = {width: torch.randn(num_rows, width) for _, width in sizes}
        seconds: dict[str, list[float]] = {name: [] for name in FORMATS}
        for _ in range(options.rounds + 1):  # the first is not counted
            for name, projections in layers.items():
                inputs = {width: one.to(products[name].activation_dtype) for width, one in x.items()}
                begun = time.perf_counter()
                for project, (_, width) in zip(projections, sizes, strict=True):
                    project(inputs[width])
                seconds[name].append(time.perf_counter() - begun)
        found[str(num_rows)] = {
            name: round(1e3 * statistics.median(times[1:]), 2) for name, times in seconds.items()
        }
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face checkpoint directory")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="of activations")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 32, 64])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    before = torch.get_num_threads()
    try:
        sizes = sizes_of(options.model)
        found = measure(sizes, options)
    except (EngineError, OSError, KeyError, ValueError, RuntimeError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    finally:
        torch.set_num_threads(before)
    print(json.dumps({"threads": options.threads, "dtype": options.dtype, "milliseconds": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
