"""Times 8-bit products, including token quantization, beside cuBLAS, torch's 8-bit products and gemlite.

python -m kernels.scaled_linear.bench [--tune]     with --tune, first fills this GPU's table
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from kernels.benchmarking import NONE, LeastWork, ResultTable, Timing, require_gpu, time_call
from kernels.crossover import Regime, read_crossover
from kernels.gemlite_rival import time_gemlite
from kernels.quantization import Fp8Weight, Int8Weight, quantize_fp8, quantize_int8
from kernels.quantize_tokens import quantize_tokens
from kernels.scaled_linear import gpu, pack_scaled_weight, reference, scaled_linear
from kernels.scaled_linear.cases import BENCH_SHAPES, BENCH_TOKENS
from kernels.scaled_linear.launches import TABLES
from kernels.testing import assert_matches
from kernels.tuning import fastest, runnable, write_crossover

FORMATS: dict[str, Callable[[Tensor], Int8Weight | Fp8Weight]] = {"int8": quantize_int8, "fp8": quantize_fp8}
# Tiles of tokens, tiles of rows and warps.
FEW_TOKENS = tuple((m, n, 4) for m in (16, 32) for n in (64, 128))
MANY_TOKENS = (
    (64, 64, 4),
    (64, 128, 4),
    (64, 256, 8),
    (128, 64, 4),
    (128, 128, 4),
    (128, 128, 8),
    (128, 256, 8),
)
CANDIDATES = tuple(
    Regime("tile", None, m, n, k, num_warps=warps, num_stages=stages)
    for tiles, columns, depths in ((FEW_TOKENS, (128, 256), (3, 4, 6)), (MANY_TOKENS, (128,), (3, 4)))
    for m, n, warps in tiles
    for k in columns
    for stages in depths
)
NUM_PROGRAMS = (0, 132, 264)
TUNED_SHAPES = BENCH_SHAPES[:4]
RIVALS = ("cuBLAS bf16", "_scaled_mm", "_int_mm", "gemlite")
MAX_ERROR = 0.01  # as a share of the product's norm; rounding to bfloat16 alone gives 0.002
MIN_INT_MM_TOKENS = 17  # `torch._int_mm` takes no fewer


def _weight(in_features: int, out_features: int) -> Tensor:
    weight: Tensor = torch.randn(out_features, in_features, device="cuda") / in_features**0.5
    return weight


def _calls(
    format_: str, num_tokens: int, shapes: Sequence[tuple[int, int]]
) -> Callable[[Regime], list[Callable[[], object]]]:
    weights = [pack_scaled_weight(FORMATS[format_](_weight(*shape))) for shape in shapes]
    inputs = [
        quantize_tokens(torch.randn(num_tokens, weight.levels.shape[1], device="cuda"), weight.levels.dtype)
        for weight in weights
    ]
    return lambda regime: [
        partial(gpu.run, levels, scales, weight, torch.bfloat16, regime)
        for (levels, scales), weight in zip(inputs, weights, strict=True)
    ]


def _run(format_: str, regime: Regime) -> None:
    for num_programs in (0, max(NUM_PROGRAMS)):  # a split is another kernel
        for call in _calls(format_, regime.block_m, [(4096, 128)])(
            replace(regime, num_programs=num_programs)
        ):
            call()
    torch.cuda.synchronize()


def _candidates(regimes: Sequence[Regime], num_tokens: int) -> list[Regime]:
    """Leave out tiles that are mostly empty, and tiles of few tokens where they would be many."""
    largest = max(one.block_m for one in CANDIDATES)
    return [
        replace(one, num_programs=num_programs)
        for one in regimes
        if min(num_tokens, largest) / 4 <= one.block_m <= max(16, 2 * num_tokens)
        for num_programs in NUM_PROGRAMS
    ]


def _tune() -> None:
    formats: dict[str, dict[int, Regime]] = {}
    for format_ in FORMATS:
        regimes = runnable(CANDIDATES, partial(_run, format_))
        formats[format_] = {
            num_tokens: fastest(_candidates(regimes, num_tokens), _calls(format_, num_tokens, TUNED_SHAPES))
            for num_tokens in BENCH_TOKENS
        }
    print(write_crossover(TABLES, formats))  # noqa: T201
    read_crossover.cache_clear()


def _rivals(
    x: Tensor, dense: Tensor, quantized: Int8Weight | Fp8Weight, expected: Tensor
) -> dict[str, Timing | str]:
    """Time torch's products of quantized tokens, and gemlite's product, which quantizes them itself."""
    tokens, token_scales = quantize_tokens(x, quantized.levels.dtype)
    rivals: dict[str, Timing | str] = dict.fromkeys(RIVALS, NONE)
    rivals["cuBLAS bf16"] = time_call(partial(torch.mm, x, dense.T))
    if isinstance(quantized, Fp8Weight):
        scales = quantized.scales.reshape(1, -1)
        rivals["_scaled_mm"] = time_call(
            lambda: torch._scaled_mm(  # noqa: SLF001
                tokens, quantized.levels.T, scale_a=token_scales, scale_b=scales, out_dtype=torch.bfloat16
            )
        )
    elif len(x) >= MIN_INT_MM_TOKENS:
        rivals["_int_mm"] = time_call(partial(torch._int_mm, tokens, quantized.levels.T))  # noqa: SLF001
    rivals["gemlite"] = time_gemlite(x, quantized, expected, quantizes_tokens=True)
    return rivals


def _check(actual: Tensor, expected: Tensor, format_: str) -> None:
    """Compare with the reference; sums of fp8 inside a tensor core keep fewer bits than float32."""
    if format_ == "int8":
        assert_matches(actual, expected)
        return
    error = float((actual.float() - expected).norm() / expected.norm())
    if not error <= MAX_ERROR:
        raise AssertionError(f"the product is {error:.4f} of its reference away, not up to {MAX_ERROR}")


def main() -> None:
    """Check every product against its float32 reference, then time it."""
    require_gpu()
    if sys.argv[1:] == ["--tune"]:
        _tune()
    table = ResultTable("scaled_linear", RIVALS)
    for in_features, out_features in BENCH_SHAPES:
        for format_, quantize in FORMATS.items():
            dense = _weight(in_features, out_features)
            quantized = quantize(dense)
            weight = pack_scaled_weight(quantized)
            for num_tokens in BENCH_TOKENS:
                x = torch.randn(num_tokens, in_features, device="cuda").bfloat16()
                expected = reference.scaled_linear(*quantize_tokens(x, weight.levels.dtype), quantized)
                _check(scaled_linear(x, weight), expected, format_)
                table.row(
                    f"{format_}: {num_tokens} x {in_features} x {out_features}",
                    time_call(partial(scaled_linear, x, weight)),
                    LeastWork(
                        quantized.num_bytes + 2 * num_tokens * (in_features + out_features),
                        operations=2 * num_tokens * in_features * out_features,
                        dtype=weight.levels.dtype,
                    ),
                    _rivals(x, dense.bfloat16(), quantized, expected),
                )
    table.write(Path(__file__).parent)


if __name__ == "__main__":
    main()
