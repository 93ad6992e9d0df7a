"""Lists the builds that `gpu.py` may launch: both regimes, in every format."""

from kernels.ahead_of_time import Build
from kernels.crossover import Regime
from kernels.expert_linear.launches import FEW, MANY, block_k
from kernels.weight_only_linear.builds import VARIANTS, Variant

NUMBERS = {
    "num_experts": "i32:16",
    "rows_per_expert": "i32:16",
    "in_features": "i32:16",
    "x_stride": "i32:16",
    "num_groups": "i32",
}


def _multiply(variant: Variant, regime: Regime) -> Build:
    return Build(
        "expert_linear.multiply",
        {"x": variant.dtype, "out": variant.dtype, "expert_ends": "*i64:16", **variant.types(), **NUMBERS},
        {
            **variant.constants(),
            "GATED": variant.is_gated,
            "BLOCK_M": regime.block_m,
            "BLOCK_N": regime.block_n,
            "BLOCK_K": block_k(regime, variant.group_size),
            "BLOCK_EXPERTS": 128,
        },
        num_warps=regime.num_warps,
        num_stages=regime.num_stages,
        targets=variant.targets,
    )


BUILDS = tuple(
    _multiply(variant, regime)
    for variant in (
        Variant("plain", 0, None),
        Variant("plain", 0, None, is_gated=True),
        Variant("plain", 0, None, is_gated=True, dtype="*fp32:16"),
        *(one for one in VARIANTS if not one.has_zero_points and not one.is_nested),
    )
    for regime in ((FEW,) if "fp32" in variant.dtype else (FEW, MANY))
)
