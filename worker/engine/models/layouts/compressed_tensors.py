"""Reads and writes checkpoints of the compressed-tensors project: int8, fp8, and int4 in words."""

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.quantization import Fp8Weight, Int4Weight, Int8Weight, QuantizedWeight
from kernels.quantization.int4 import MIDDLE
from kernels.quantization.nibbles import unpack_nibbles
from worker.engine.models.layouts.grouped import grouped_weight
from worker.engine.models.layouts.layout import TakeTensor
from worker.engine.models.layouts.words import pack_words, unpack_words


@dataclass(frozen=True, slots=True)
class CompressedTensorsLayout:
    """`weight` int8 or float8 with `weight_scale`, or `weight_packed` int32 with 8 added to each level."""

    num_bits: int
    is_symmetric: bool
    block: tuple[int, int] | None = None  # rows and columns that share an fp8 scale, if scales are by blocks

    def covers(self, names: Container[str], module: str) -> bool:
        """Return whether `module` is quantized."""
        return f"{module}.weight_scale" in names

    def read(self, take: TakeTensor, module: str) -> QuantizedWeight | Tensor:
        """Return its weight."""
        scales = take(f"{module}.weight_scale")
        if self.num_bits == 4:
            return self._read_packed(take, module, scales)
        levels = take(f"{module}.weight")
        if levels.dtype == torch.float8_e4m3fn:
            return self._read_fp8(levels, scales)
        scales = scales.float().flatten().expand(len(levels)).contiguous()
        zero_points = None
        if not self.is_symmetric:
            stored = take(f"{module}.weight_zero_point").to(torch.int8).flatten()
            zero_points = stored.expand(len(levels)).contiguous()
        return Int8Weight(levels, scales, zero_points)

    def _read_fp8(self, levels: Tensor, scales: Tensor) -> Fp8Weight:
        rows, columns = levels.shape
        if self.block is not None:
            return Fp8Weight(levels, scales.float(), (min(self.block[0], rows), min(self.block[1], columns)))
        scales = scales.float().reshape(-1, 1)
        return Fp8Weight(levels, scales, (rows if len(scales) == 1 else 1, columns))

    def _read_packed(self, take: TakeTensor, module: str, scales: Tensor) -> QuantizedWeight | Tensor:
        rows, columns = take(f"{module}.weight_shape").tolist()
        levels = unpack_words(take(f"{module}.weight_packed"), 4)[:, :columns]
        zero_points = torch.full(scales.shape, MIDDLE, dtype=torch.uint8)
        if not self.is_symmetric:
            zero_points = unpack_words(take(f"{module}.weight_zero_point").T, 4).T[:rows]
        return grouped_weight(levels, scales, zero_points, num_bits=4)


@dataclass(frozen=True, slots=True)
class GroupTargets:
    """The modules that a group of config.json is for."""

    names: frozenset[str]  # of modules, or "Linear", which is every one that no other group names
    patterns: tuple[re.Pattern[str], ...] = ()

    def name(self, module: str) -> bool:
        """Return whether the group names this module itself."""
        return module in self.names or any(pattern.match(module) for pattern in self.patterns)


@dataclass(frozen=True, slots=True)
class MixedLayout:
    """Modules of several groups, each stored as its group says."""

    groups: tuple[tuple[GroupTargets, CompressedTensorsLayout], ...]

    def covers(self, names: Container[str], module: str) -> bool:
        """Return whether `module` is quantized."""
        return f"{module}.weight_scale" in names

    def read(self, take: TakeTensor, module: str) -> QuantizedWeight | Tensor:
        """Return its weight."""
        named = (layout for targets, layout in self.groups if targets.name(module))
        others = (layout for targets, layout in self.groups if "Linear" in targets.names)
        layout = next(named, None) or next(others, None)
        if layout is None:
            raise ValueError("no group of config.json is for it")
        return layout.read(take, module)


@dataclass(frozen=True, slots=True)
class Group:
    """Modules of one format, to be written; symmetric, and int8 and fp8 scaled by rows."""

    kind: str  # int8, fp8 or int4
    group_size: int | None = None  # of int4
    targets: Sequence[str] = ("Linear",)  # names of modules; "Linear": every one
    has_input_scales: bool = False  # int8 only: activations have the scale of the checkpoint, not a token's

    @property
    def format(self) -> str:
        """The format's name, as config.json has it."""
        if self.kind == "int4":
            return "pack-quantized"
        return "float-quantized" if self.kind == "fp8" else "int-quantized"

    def to_json(self) -> dict[str, Any]:
        """Return config.json's description of the group."""
        number = "float" if self.kind == "fp8" else "int"
        weights = {
            "num_bits": 4 if self.kind == "int4" else 8,
            "type": number,
            "strategy": "group" if self.kind == "int4" else "channel",
            "group_size": self.group_size,
            "symmetric": True,
            "dynamic": False,
        }
        inputs = {
            "num_bits": 8,
            "type": number,
            "strategy": "tensor" if self.has_input_scales else "token",
            "symmetric": True,
            "dynamic": not self.has_input_scales,
        }
        return {
            "targets": list(self.targets),
            "weights": weights,
            "input_activations": None if self.kind == "int4" else inputs,
            "output_activations": None,
        }


def write_tensors(module: str, weight: Int8Weight | Int4Weight | Fp8Weight) -> dict[str, Tensor]:
    """Return the tensors that hold a symmetric weight; raises ValueError if it has zero points."""
    if not isinstance(weight, Fp8Weight) and weight.zero_points is not None:
        raise ValueError(f"{module}: only symmetric weights can be written")
    if isinstance(weight, Int4Weight):
        return {
            f"{module}.weight_packed": pack_words(unpack_nibbles(weight.packed), 4),
            f"{module}.weight_scale": weight.scales,
            f"{module}.weight_shape": torch.tensor(weight.shape),
        }
    return {f"{module}.weight": weight.levels, f"{module}.weight_scale": weight.scales.reshape(-1, 1)}


def write_config(groups: Sequence[Group], ignored: Sequence[str] = ()) -> dict[str, Any]:
    """Return config.json's section; `ignored` are modules besides the head that are not quantized."""
    is_mixed = len({group.format for group in groups}) > 1
    return {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision" if is_mixed else groups[0].format,
        "quantization_status": "compressed",
        "config_groups": {
            f"group_{number}": group.to_json() | ({"format": group.format} if is_mixed else {})
            for number, group in enumerate(groups)
        },
        "ignore": ["lm_head", *ignored],
    }
