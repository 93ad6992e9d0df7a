"""Speed of weight-only products beside bf16 in cuBLAS and torch's own int4.

python -m kernels.weight_only_linear.bench [--tune]     with --tune, first fills this GPU's table
"""

import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from kernels.benchmarking import report, require_gpu, time_call
from kernels.crossover import Regime, read_crossover
from kernels.quantization import Int4Weight, QuantizedWeight
from kernels.quantization.nibbles import unpack_nibbles
from kernels.testing import assert_matches
from kernels.tuning import fastest, write_crossover
from kernels.weight_only_linear import gpu, pack_linear_weight, reference, weight_only_linear
from kernels.weight_only_linear.cases import BENCH_SHAPES, BENCH_TOKENS, FORMATS
from kernels.weight_only_linear.launches import TABLES

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


def _rivals(x: Tensor, dense: Tensor, quantized: QuantizedWeight) -> dict[str, Callable[[], object]]:
    calls: dict[str, Callable[[], object]] = {"cuBLAS bf16": partial(torch.mm, x, dense.T)}
    if isinstance(quantized, Int4Weight) and quantized.zero_points is None:
        call = partial(
            torch._weight_int4pack_mm,  # noqa: SLF001
            x,
            *_as_torch_packs(quantized),
        )
        assert_matches(call(), reference.weight_only_linear(x, quantized))
        calls["_weight_int4pack_mm"] = call
    return calls


def _as_torch_packs(weight: Int4Weight) -> tuple[Tensor, int, Tensor]:
    """Return tiles, group size, and scale and offset pairs: a level is `(level - 8) * scale + offset`."""
    levels = unpack_nibbles(weight.packed)
    tiles = torch._convert_weight_to_int4pack((levels[:, ::2] << 4) | levels[:, 1::2], TORCH_INNER_TILES)  # noqa: SLF001
    scales = weight.scales.bfloat16().T
    return tiles, weight.group_size, torch.stack((scales, torch.zeros_like(scales)), dim=2).contiguous()


def main() -> None:
    """Check every product against its float32 truth, then time it."""
    require_gpu()
    if sys.argv[1:] == ["--tune"]:
        _tune()
    for in_features, out_features in BENCH_SHAPES:
        for format_ in TIMED:
            dense, quantized = _weight(format_, in_features, out_features)
            weight = pack_linear_weight(quantized)
            for num_tokens in BENCH_TOKENS:
                x = torch.randn(num_tokens, in_features, device="cuda").bfloat16()
                assert_matches(weight_only_linear(x, weight), reference.weight_only_linear(x, quantized))
                moved = quantized.num_bytes + 2 * num_tokens * (in_features + out_features)
                report(
                    f"{format_} weight",
                    f"{num_tokens} x {in_features} x {out_features} bf16",
                    time_call(partial(weight_only_linear, x, weight), moved),
                    {name: time_call(call) for name, call in _rivals(x, dense, quantized).items()},
                )


if __name__ == "__main__":
    main()
