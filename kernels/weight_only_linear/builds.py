"""Lists the builds that `gpu.py` may launch: every regime of every table, in every format it serves."""

from collections.abc import Iterator
from dataclasses import dataclass

from kernels.ahead_of_time import FP8_TARGETS, TARGETS, Build
from kernels.crossover import Regime, launched_regimes
from kernels.weight_only_linear.launches import DEQUANTIZE_BLOCK, REDUCE_BLOCK, TABLES

NUMBERS = {"num_tokens": "i32", "out_features": "i32:16", "in_features": "i32:16", "num_groups": "i32"}


@dataclass(frozen=True, slots=True)
class Variant:
    """One layout of a format; gates and dtypes vary over the variants so that all epilogues are built."""

    name: str
    group_size: int
    scales: str | None
    has_zero_points: bool = False
    is_nested: bool = False
    is_gated: bool = False
    dtype: str = "*bf16:16"

    def types(self) -> dict[str, str]:
        """Return the types of the tensors that this weight has."""
        zero = "*i8:16" if self.name == "int8" else "*u8:16"
        data = {"plain": self.dtype, "int8": "*i8:16"}.get(self.name, "*u8:16")
        return {
            "data": data,
            **({"scales": self.scales} if self.scales is not None else {}),
            **({"zero_points": zero} if self.has_zero_points else {}),
            **({"nested_scales": "*fp32:16", "nested_offset": "*fp32:16"} if self.is_nested else {}),
            **({"codebook": "*fp32:16"} if self.name == "nf4" else {}),
        }

    def constants(self) -> dict[str, object]:
        """Return the constants: the format, the group size, and None for each absent tensor."""
        tensors = ("scales", "zero_points", "nested_scales", "nested_offset", "codebook")
        absent = {name: None for name in tensors if name not in self.types()}
        return {**absent, "FORMAT": self.name, "GROUP": self.group_size}

    @property
    def targets(self) -> tuple[str, ...]:
        """The chips that support the format."""
        return FP8_TARGETS if self.name == "fp8" else tuple(TARGETS)


VARIANTS = (
    Variant("int8", 0, "*fp32:16"),
    Variant("int8", 0, "*fp32:16", has_zero_points=True, is_gated=True),
    Variant("int4", 32, "*bf16:16"),
    Variant("int4", 64, "*bf16:16", is_gated=True),
    Variant("int4", 128, "*fp16:16", has_zero_points=True, dtype="*fp16:16"),
    Variant("fp8", 0, "*fp32:16", is_gated=True),
    Variant("fp8", 128, "*fp32:16"),
    Variant("nf4", 64, "*fp32:16", is_gated=True),
    Variant("nf4", 64, "*i8:16", is_nested=True),
)


def _gemv(variant: Variant, regime: Regime, chips: tuple[str, ...]) -> Build:
    return Build(
        "weight_only_linear.gemv",
        {
            "x": variant.dtype,
            "out": variant.dtype,
            "bias": variant.dtype,
            "x_stride": "i32:16",
            **variant.types(),
            **NUMBERS,
        },
        {
            **variant.constants(),
            "GATED": variant.is_gated,
            "BLOCK_N": regime.block_n,
            "BLOCK_K": max(regime.block_k, variant.group_size),
        },
        num_warps=regime.num_warps,
        targets=chips,
    )


def _multiply(variant: Variant, regime: Regime, chips: tuple[str, ...], *, is_split: bool) -> Build:
    return Build(
        "weight_only_linear.multiply",
        {
            "x": variant.dtype,
            "x_stride": "i32:16",
            "split_size": "i32:16",
            "out": "*fp32:16" if is_split else variant.dtype,
            **({} if is_split else {"bias": variant.dtype}),
            **variant.types(),
            **NUMBERS,
        },
        {
            **variant.constants(),
            **({"bias": None} if is_split else {}),
            "GATED": variant.is_gated,
            "SPLIT": is_split,
            "BLOCK_M": regime.block_m,
            "BLOCK_N": regime.block_n,
            "BLOCK_K": min(regime.block_k, variant.group_size or regime.block_k),
        },
        num_warps=regime.num_warps,
        num_stages=regime.num_stages,
        targets=chips,
    )


def _dequantize(variant: Variant) -> Build:
    sizes = {"out_features": "i32:16", "in_features": "i32:16", "num_groups": "i32"}
    return Build(
        "weight_only_linear.dequantize",
        {"out": variant.dtype, **variant.types(), **sizes},
        {**variant.constants(), "BLOCK_K": DEQUANTIZE_BLOCK},
        targets=variant.targets,
    )


def _reduce(*, is_gated: bool) -> Build:
    return Build(
        "weight_only_linear.reduce",
        {
            "partial": "*fp32:16",
            "bias": "*bf16:16",
            "out": "*bf16:16",
            "num_tokens": "i32",
            "out_features": "i32:16",
            "num_splits": "i32",
        },
        {"GATED": is_gated, "BLOCK_N": REDUCE_BLOCK},
    )


def _builds() -> Iterator[Build]:
    yield _reduce(is_gated=False)
    yield _reduce(is_gated=True)
    for variant in VARIANTS:
        yield _dequantize(variant)
        for regime, chips in launched_regimes(TABLES, variant.name, variant.targets):
            if regime.kind == "gemv":
                yield _gemv(variant, regime, chips)
            if regime.kind == "tile":
                yield _multiply(variant, regime, chips, is_split=False)
                if not variant.is_gated:  # before `reduce` nothing is gated
                    yield _multiply(variant, regime, chips, is_split=True)


BUILDS = tuple(_builds())
