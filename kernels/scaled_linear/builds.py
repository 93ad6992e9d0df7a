"""Lists the builds that `gpu.py` may launch: every regime of every table, in int8 and fp8."""

from collections.abc import Iterator

from kernels.ahead_of_time import FP8_TARGETS, TARGETS, Build
from kernels.crossover import Regime, launched_regimes
from kernels.scaled_linear.launches import REDUCE_BLOCK, SWAPPED_UP_TO, TABLES

TYPES = {"int8": ("*i8:16", "*i32:16"), "fp8": ("*fp8e4nv:16", "*fp32:16")}  # of levels, of split sums
CHIPS = {"int8": tuple(TARGETS), "fp8": FP8_TARGETS}
SCALES = {"x_scales": "*fp32:16", "scales": "*fp32:16", "bias": "*bf16:16"}


def _multiply(
    format_: str, regime: Regime, chips: tuple[str, ...], *, is_split: bool, is_gated: bool
) -> Build:
    levels, sums = TYPES[format_]
    return Build(
        "scaled_linear.multiply",
        {
            "x": levels,
            "weight": levels,
            "out": sums if is_split else "*bf16:16",
            **SCALES,
            "num_tokens": "i32",
            "out_features": "i32:16",
            "in_features": "i32:16",
            "split_size": "i32:16",
        },
        {
            "GATED": is_gated,
            "SPLIT": is_split,
            "SWAPPED": regime.block_m <= SWAPPED_UP_TO,
            "BLOCK_M": regime.block_m,
            "BLOCK_N": regime.block_n,
            "BLOCK_K": regime.block_k,
        },
        num_warps=regime.num_warps,
        num_stages=regime.num_stages,
        targets=chips,
    )


def _builds() -> Iterator[Build]:
    for format_, (_, sums) in TYPES.items():
        for is_gated in (False, True):
            sizes = {"num_tokens": "i32", "out_features": "i32:16", "num_splits": "i32"}
            yield Build(
                "scaled_linear.reduce",
                {"partial": sums, "out": "*bf16:16", **SCALES, **sizes},
                {"GATED": is_gated, "BLOCK_N": REDUCE_BLOCK},
            )
        for regime, chips in launched_regimes(TABLES, format_, CHIPS[format_]):
            yield _multiply(format_, regime, chips, is_split=False, is_gated=format_ == "fp8")
            if regime.num_programs:
                yield _multiply(format_, regime, chips, is_split=True, is_gated=False)


BUILDS = tuple(_builds())
