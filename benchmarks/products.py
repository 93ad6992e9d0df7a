r"""Measures the products of a model's layers on a CPU, as a share of what the machine multiplies at most.

    python -m benchmarks.products --model DIR --dtype f32|bf16|int8 --threads 2 --rows 8 16 32 64

Weights are random, of the sizes in DIR/config.json. Each number of rows goes through the products of all
layers, without attention: on one thread; on all threads, each with rows and calls of its own; and on all
threads, which share the columns. The most is what torch's own product reaches, 512 rows by one weight; at
int8 it is oneDNN's. The last line is JSON: the most, and the medians by the number of rows.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from kernels.int8_linear import int8_linear, pack_int8_weight
from kernels.product_chain import After, Chain, Link, pack_panels, run_chain
from kernels.quantization import Int8Weight
from worker.engine.models.registry import Architecture, read_architecture
from worker.engine.requests.errors import EngineError

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}
PASSES = 3  # in a row, for one time
PEAK_ROWS, PEAK_WIDTH = 512, 1024


def random_weight(shape: tuple[int, int], dtype: torch.dtype) -> Tensor | Int8Weight:
    """Return a weight [out_features, in_features] whose products neither vanish nor overflow."""
    if dtype == torch.int8:
        return Int8Weight(torch.randint(-127, 128, shape, dtype=dtype), torch.rand(shape[0]) / shape[1])
    weight: Tensor = torch.randn(shape) / shape[1] ** 0.5
    return weight.to(dtype)


def layers_of(shape: Architecture, width: int, dtype: torch.dtype) -> list[Chain]:
    """Return the products from each layer's attention to the next one's."""
    hidden, attention = shape.hidden_size, shape.num_heads * shape.head_dim
    qkv = attention + 2 * shape.num_kv_heads * shape.head_dim

    def link(out_features: int, in_features: int, after: After) -> Link:
        weight = pack_panels(random_weight((out_features, in_features), dtype))
        return Link(weight, after, torch.ones(out_features) if after is After.NORM else None)

    return [
        Chain(
            [
                link(hidden, attention, After.NORM),
                link(2 * width, hidden, After.SILU),
                link(hidden, width, After.NORM),
                link(qkv, hidden, After.NOTHING),
            ]
        )
        for _ in range(shape.num_layers)
    ]


def seconds_of(call: Callable[[], object], rounds: int) -> float:
    """Return the median seconds of a call that is made PASSES times in a row, after a first one."""
    found = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        for _ in range(PASSES):
            call()
        found.append((time.perf_counter() - begun) / PASSES)
    return statistics.median(found[1:])


def peak(dtype: torch.dtype, rounds: int) -> float:
    """Return how many multiply-adds a second torch's own product reaches on its threads."""
    weight = random_weight((PEAK_WIDTH, PEAK_WIDTH), dtype)
    x = torch.randn(PEAK_ROWS, PEAK_WIDTH)
    call: Callable[[], object]
    if isinstance(weight, Tensor):
        call = partial(linear, x.to(dtype), weight)
    else:
        call = partial(int8_linear, x, pack_int8_weight(weight), None, torch.float32)
    return PEAK_ROWS * PEAK_WIDTH**2 / seconds_of(call, rounds)


def measure(
    chains: Sequence[Chain], num_rows: int, num_threads: int, peaks: dict[int, float], rounds: int
) -> dict[str, float]:
    """Return the milliseconds of a pass in each way, and its share of the most."""
    hidden = next(link.out_features for link in chains[0].links if link.after is After.NORM)
    sides = [
        (torch.randn(num_rows, chains[0].in_features), torch.randn(num_rows, hidden))
        for _ in range(num_threads)
    ]
    products = num_rows * sum(
        link.weight.in_features * link.weight.out_features for chain in chains for link in chain.links
    )

    def run(side: tuple[Tensor, Tensor], threads: int) -> None:
        torch.set_num_threads(threads)
        for chain in chains:
            run_chain(chain, *side)

    with ThreadPoolExecutor(num_threads) as pool:
        ways: dict[str, tuple[Callable[[], object], int, int]] = {
            "one": (lambda: run(sides[0], 1), 1, 1),
            "apart": (lambda: list(pool.map(run, sides, [1] * num_threads)), num_threads, num_threads),
            "shared": (lambda: run(sides[0], num_threads), 1, num_threads),
        }
        figures = {}
        for name, (call, num_sides, threads) in ways.items():
            seconds = seconds_of(call, rounds)
            figures[f"{name}_ms"] = round(1e3 * seconds, 2)
            figures[f"{name}_share"] = round(num_sides * products / seconds / peaks[threads], 3)
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face checkpoint directory")
    parser.add_argument("--dtype", choices=DTYPES, default="int8")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    before = torch.get_num_threads()
    dtype = DTYPES[options.dtype]
    try:
        shape = read_architecture(options.model)
        config: dict[str, Any] = json.loads((options.model / "config.json").read_text())
        chains = layers_of(shape, config["intermediate_size"], dtype)
        peaks = {}
        for threads in (1, options.threads):
            torch.set_num_threads(threads)
            peaks[threads] = peak(dtype, options.rounds)
        found = {
            str(num_rows): measure(chains, num_rows, options.threads, peaks, options.rounds)
            for num_rows in options.rows
        }
    except (EngineError, OSError, KeyError, ValueError, RuntimeError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    finally:
        torch.set_num_threads(before)
    most = {str(threads): round(rate / 1e9, 1) for threads, rate in peaks.items()}
    print(json.dumps({"most_g_s": most, "rows": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
