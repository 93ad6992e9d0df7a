"""Finds the layout that a checkpoint's config.json names."""

import re
from pathlib import Path
from typing import Any

from worker.engine.models.layouts.awq import AwqLayout
from worker.engine.models.layouts.bitsandbytes import BitsAndBytesLayout
from worker.engine.models.layouts.compressed_tensors import CompressedTensorsLayout, GroupTargets, MixedLayout
from worker.engine.models.layouts.fp8_blocks import Fp8BlocksLayout
from worker.engine.models.layouts.gptq import GptqLayout
from worker.engine.models.layouts.layout import Layout
from worker.engine.requests.errors import UnsupportedModelError

# Supported strategies of compressed-tensors, by its `format`.
STRATEGIES: dict[str, tuple[object, ...]] = {
    "int-quantized": ("tensor", "channel"),
    "float-quantized": ("tensor", "channel", "block"),
    "pack-quantized": ("group", "channel"),
}
MIXED = "mixed-precision"  # each group has a `format` of its own


def read_layout(file: Path, config: dict[str, Any]) -> Layout | None:
    """Return the layout that `quantization_config` describes; None if there is no such section.

    Raises UnsupportedModelError naming the key that is not supported.
    """
    section = config.get("quantization_config")
    if section is None:
        return None
    if not isinstance(section, dict):
        raise UnsupportedModelError(file, "quantization_config", f"must be an object, not {section!r}")
    match section.get("quant_method"):
        case "compressed-tensors":
            return _read_compressed_tensors(file, section)
        case "gptq":
            _require(file, section, "bits", (4, 8))
            return GptqLayout(section["bits"], 0 if section.get("checkpoint_format") == "gptq_v2" else 1)
        case "awq":
            _require(file, section, "bits", (4,))
            _require(file, section, "version", ("gemm", None))
            return AwqLayout()
        case "fp8":
            return Fp8BlocksLayout(_read_block(file, section, "weight_block_size") or (128, 128))
        case "bitsandbytes":
            _require(file, section, "bnb_4bit_quant_type", ("nf4",))
            return BitsAndBytesLayout()
        case other:
            supported = "compressed-tensors, gptq, awq, fp8 and bitsandbytes"
            raise UnsupportedModelError(
                file,
                "quantization_config.quant_method",
                f"{other!r} is not supported; supported are {supported}",
            )


def _read_compressed_tensors(file: Path, section: dict[str, Any]) -> Layout:
    _require(file, section, "format", (*STRATEGIES, MIXED))
    _require(file, section, "quantization_status", ("compressed", None))
    groups = section.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        found = "no groups" if isinstance(groups, dict) else repr(groups)
        raise UnsupportedModelError(
            file, "quantization_config.config_groups", f"has {found}; at least one group is needed"
        )
    read = [_read_group(file, section, name, group) for name, group in groups.items()]
    return read[0][1] if len(read) == 1 else MixedLayout(tuple(read))


def _read_group(
    file: Path, section: dict[str, Any], name: str, group: Any
) -> tuple[GroupTargets, CompressedTensorsLayout]:
    where = f"quantization_config.config_groups.{name}"
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        raise UnsupportedModelError(file, f"{where}.weights", f"must be an object, not {weights!r}")
    # Files older than formats by group have the section's only.
    stored = {"format": group.get("format") or section["format"]}
    _require(file, stored, "format", tuple(STRATEGIES))
    is_packed = stored["format"] == "pack-quantized"
    _require(file, weights, "num_bits", (4,) if is_packed else (8,))
    _require(file, weights, "actorder", (None, "weight", "static"))
    _require(file, weights, "strategy", STRATEGIES[stored["format"]])
    layout = CompressedTensorsLayout(
        num_bits=weights["num_bits"],
        is_symmetric=weights.get("symmetric", True),
        block=_read_block(file, weights, "block_structure"),
    )
    return _read_targets(file, f"{where}.targets", group.get("targets")), layout


def _read_targets(file: Path, where: str, targets: Any) -> GroupTargets:
    if targets is None:
        targets = ["Linear"]
    if not isinstance(targets, list) or not all(isinstance(one, str) for one in targets):
        raise UnsupportedModelError(file, where, f"must be names of modules, not {targets!r}")
    patterns = [one.removeprefix("re:") for one in targets if one.startswith("re:")]
    try:
        return GroupTargets(frozenset(targets), tuple(map(re.compile, patterns)))
    except (re.error, RecursionError, OverflowError) as error:
        raise UnsupportedModelError(file, where, f"has a pattern that cannot be read: {error}") from error


def _read_block(file: Path, section: dict[str, Any], key: str) -> tuple[int, int] | None:
    """Return the rows and columns that share a scale; None if the key is absent."""
    value = section.get(key)
    if value is None:
        return None
    if (
        not isinstance(value, list)
        or len(value) != 2
        or not all(type(one) is int and one > 0 for one in value)
    ):
        raise UnsupportedModelError(
            file,
            f"quantization_config: {key}",
            f"must be [rows, columns] of the blocks that share a scale, not {value!r}",
        )
    return value[0], value[1]


def _require(file: Path, section: dict[str, Any], key: str, supported: tuple[object, ...]) -> None:
    value = section.get(key)
    if value not in supported:
        wanted = ", ".join(repr(one) for one in supported if one is not None)
        raise UnsupportedModelError(
            file, f"quantization_config: {key}", f"{value!r} is not supported; supported: {wanted}"
        )
