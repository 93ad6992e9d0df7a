"""Reads fp8 checkpoints scaled by blocks of rows and columns, as DeepSeek V3 and Qwen3 publish them."""

from collections.abc import Container
from dataclasses import dataclass

from kernels.quantization import Fp8Weight
from worker.engine.models.layouts.layout import TakeTensor


@dataclass(frozen=True, slots=True)
class Fp8BlocksLayout:
    """`weight` float8 [out, in], and its multipliers `weight_scale_inv` [row blocks, column blocks]."""

    block: tuple[int, int]

    def covers(self, names: Container[str], module: str) -> bool:
        """Return whether `module` is quantized."""
        return f"{module}.weight_scale_inv" in names

    def read(self, take: TakeTensor, module: str) -> Fp8Weight:
        """Return its weight."""
        levels = take(f"{module}.weight")
        block = (min(self.block[0], levels.shape[0]), min(self.block[1], levels.shape[1]))
        return Fp8Weight(levels, take(f"{module}.weight_scale_inv").float(), block)
