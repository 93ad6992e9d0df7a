"""Times weight-only products beside bf16 in cuBLAS, torch's own int4 product and gemlite.

python -m kernels.weight_only_linear.bench [--tune]     with --tune, first fills this GPU's table
"""

import sys
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from kernels.benchmarking import NONE, LeastWork, ResultTable, Timing, require_gpu, time_call
from kernels.crossover import Regime, read_crossover
from kernels.gemlite_rival import time_gemlite
from kernels.quantization import Int4Weight, QuantizedWeight
from kernels.quantization.nibbles import unpack_nibbles
from kernels.testing import assert_matches
from kernels.tuning import fastest, write_crossover
from kernels.weight_only_linear import gpu, pack_linear_weight, reference, weight_only_linear
from kernels.weight_only_linear.cases import BENCH_SHAPES, BENCH_TOKENS, FORMATS
from kernels.weight_only_linear.launches import TABLES

RIVALS = ("cuBLAS bf16", "_weight_int4pack_mm", "gemlite")
TIMED = ("int8", "int4-64", "fp8", "nf4")
CANDIDATES = (
    *(Regime("gemv", None, block_n=n, block_k=k) for n in (4, 8, 16) for k in (256, 512, 1024)),
    *(
        Regime("tile", None, m, n, k, num_warps=4, num_stages=stages, num_programs=programs)
        for m in (16, 32, 64)
        for n in (64, 128)
        for k in (64, 128)
        for stages in (3, 4)
        for programs in (0, 132, 264, 528)
    ),
    Regime("dense", None),
)
MAX_GEMV_TOKENS = 8
TORCH_INNER_TILES = 8  # of torch's own int4 layout, along K


def _weight(format_: str, in_features: int, out_features: int) -> tuple[Tensor, QuantizedWeight]:
    dense = torch.randn(out_features, in_features, device="cuda") / in_features**0.5
    return dense.bfloat16(), FORMATS[format_](dense)


def _tune() -> None:
    formats: dict[str, dict[int, Regime]] = {}
    for format_ in TIMED:
        weights = [pack_linear_weight(_weight(format_, *shape)[1]) for shape in BENCH_SHAPES[:3]]
        found = formats.setdefault(format_.split("-")[0], {})
        for num_tokens in BENCH_TOKENS:
            inputs = [torch.randn(num_tokens, w.in_features, device="cuda").bfloat16() for w in weights]
            candidates = [one for one in CANDIDATES if one.kind != "gemv" or num_tokens <= MAX_GEMV_TOKENS]
            found[num_tokens] = fastest(
                candidates,
                lambda regime, inputs=inputs, weights=weights: [  # type: ignore[misc]
                    partial(gpu.run, x, w, regime) for x, w in zip(inputs, weights, strict=True)
                ],
            )
    print(write_crossover(TABLES, formats))  # noqa: T201
    read_crossover.cache_clear()


def _rivals(
    x: Tensor, dense: Tensor, quantized: QuantizedWeight, expected: Tensor
) -> dict[str, Timing | str]:
    return {
        "cuBLAS bf16": time_call(partial(torch.mm, x, dense.T)),
        "_weight_int4pack_mm": _time_torch_int4(x, quantized, expected),
        "gemlite": time_gemlite(x, quantized, expected),
    }


def _time_torch_int4(x: Tensor, quantized: QuantizedWeight, expected: Tensor) -> Timing | str:
    if not isinstance(quantized, Int4Weight) or quantized.zero_points is not None:
        return NONE
    call = partial(torch._weight_int4pack_mm, x, *_as_torch_packs(quantized))  # noqa: SLF001
    assert_matches(call(), expected)
    return time_call(call)


def _as_torch_packs(weight: Int4Weight) -> tuple[Tensor, int, Tensor]:
    """Return tiles, group size, and pairs of scale and offset: a value is `(level - 8) * scale + offset`."""
    levels = unpack_nibbles(weight.packed)
    tiles = torch._convert_weight_to_int4pack((levels[:, ::2] << 4) | levels[:, 1::2], TORCH_INNER_TILES)  # noqa: SLF001
    scales = weight.scales.bfloat16().T
    return tiles, weight.group_size, torch.stack((scales, torch.zeros_like(scales)), dim=2).contiguous()


def main() -> None:
    """Check every product against its float32 reference, then time it."""
    require_gpu()
    if sys.argv[1:] == ["--tune"]:
        _tune()
    table = ResultTable("weight_only_linear", RIVALS)
    for in_features, out_features in BENCH_SHAPES:
        for format_ in TIMED:
            dense, quantized = _weight(format_, in_features, out_features)
            weight = pack_linear_weight(quantized)
            for num_tokens in BENCH_TOKENS:
                x = torch.randn(num_tokens, in_features, device="cuda").bfloat16()
                expected = reference.weight_only_linear(x, quantized)
                assert_matches(weight_only_linear(x, weight), expected)
                table.row(
                    f"{format_}: {num_tokens} x {in_features} x {out_features}",
                    time_call(partial(weight_only_linear, x, weight)),
                    LeastWork(
                        quantized.num_bytes + 2 * num_tokens * (in_features + out_features),
                        operations=2 * num_tokens * in_features * out_features,
                    ),
                    _rivals(x, dense, quantized, expected),
                )
    table.write(Path(__file__).parent)


if __name__ == "__main__":
    main()
