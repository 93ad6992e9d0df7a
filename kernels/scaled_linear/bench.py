"""Times 8-bit products, including token quantization, beside cuBLAS, torch's 8-bit products and gemlite.

python -m kernels.scaled_linear.bench [--tune]     with --tune, first fills this GPU's table
"""

import sys
from collections.abc import Callable
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
from kernels.tuning import fastest, write_crossover

FORMATS: dict[str, Callable[[Tensor], Int8Weight | Fp8Weight]] = {"int8": quantize_int8, "fp8": quantize_fp8}
CANDIDATES = tuple(
    Regime("tile", None, m, n, k, num_warps=warps, num_stages=stages, num_programs=programs)
    for m in (16, 32, 64, 128)
    for n in (64, 128)
    for k in (128,)
    for warps in (4, 8)
    for stages in (2, 3, 4)
    for programs in ((0, 132, 264) if m <= 64 else (0,))
)
RIVALS = ("cuBLAS bf16", "_scaled_mm", "_int_mm", "gemlite")
MIN_INT_MM_TOKENS = 17  # `torch._int_mm` takes no fewer


def _weight(in_features: int, out_features: int) -> Tensor:
    weight: Tensor = torch.randn(out_features, in_features, device="cuda") / in_features**0.5
    return weight


def _tune() -> None:
    formats: dict[str, dict[int, Regime]] = {}
    for format_, quantize in FORMATS.items():
        weights = [pack_scaled_weight(quantize(_weight(*shape))) for shape in BENCH_SHAPES[:3]]
        found = formats.setdefault(format_, {})
        for num_tokens in BENCH_TOKENS:
            inputs = [
                quantize_tokens(torch.randn(num_tokens, w.levels.shape[1], device="cuda"), w.levels.dtype)
                for w in weights
            ]
            found[num_tokens] = fastest(
                [one for one in CANDIDATES if one.block_m <= max(16, 2 * num_tokens)],
                lambda regime, inputs=inputs, weights=weights: [  # type: ignore[misc]
                    partial(gpu.run, levels, scales, w, torch.bfloat16, regime)
                    for (levels, scales), w in zip(inputs, weights, strict=True)
                ],
            )
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
                assert_matches(scaled_linear(x, weight), expected)
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
