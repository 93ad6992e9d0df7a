"""Times products by expert beside one cuBLAS product per expert; for cuBLAS, the host knows the tokens."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from kernels.benchmarking import LeastWork, ResultTable, require_gpu, time_call
from kernels.expert_linear import expert_linear, pack_expert_weights, reference
from kernels.expert_linear.cases import BENCH_SHAPES, BENCH_TOKENS
from kernels.quantization import quantize_fp8
from kernels.testing import assert_matches


def main() -> None:
    """Check, then time, tokens that are spread evenly over the experts."""
    require_gpu()
    table = ResultTable("expert_linear", ["cuBLAS bf16"])
    for num_experts, num_chosen, in_features, out_features in BENCH_SHAPES:
        rows = num_experts * out_features
        dense = torch.randn(rows, in_features, device="cuda").bfloat16() / in_features**0.5
        for format_, weight in (("bf16", dense), ("fp8", quantize_fp8(dense))):
            packed = pack_expert_weights(weight, num_experts)
            for num_tokens in BENCH_TOKENS:
                x = torch.randn(num_tokens * num_chosen, in_features, device="cuda").bfloat16()
                parts = torch.arange(1, num_experts + 1, device="cuda")
                ends = parts * len(x) // num_experts
                assert_matches(
                    expert_linear(x, packed, ends), reference.expert_linear(x, weight, ends.tolist())
                )
                num_used = min(num_experts, len(x))
                weight_bytes = packed.stacked.num_bytes * num_used // num_experts
                table.row(
                    f"{format_}: {num_tokens} of {num_chosen} x {in_features} x {out_features}",
                    time_call(partial(expert_linear, x, packed, ends)),
                    LeastWork(
                        weight_bytes + 2 * len(x) * (in_features + out_features),
                        operations=2 * len(x) * in_features * out_features,
                    ),
                    {
                        "cuBLAS bf16": time_call(
                            partial(_one_by_one, x, dense.chunk(num_experts), ends.tolist())
                        )
                    },
                )
    table.write(Path(__file__).parent)


def _one_by_one(x: Tensor, weights: tuple[Tensor, ...], ends: list[int]) -> None:
    for first, end, weight in zip([0, *ends], ends, weights, strict=False):
        if first < end:
            torch.mm(x[first:end], weight.T)


if __name__ == "__main__":
    main()
