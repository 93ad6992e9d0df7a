"""Reads GPTQ checkpoints (AutoGPTQ, GPTQModel): words along the input, version 1 zero points less 1."""

from collections.abc import Container
from dataclasses import dataclass

from torch import Tensor

from kernels.quantization import QuantizedWeight
from worker.engine.models.layouts.grouped import grouped_weight
from worker.engine.models.layouts.layout import TakeTensor
from worker.engine.models.layouts.words import unpack_words


@dataclass(frozen=True, slots=True)
class GptqLayout:
    """Tensors of a module, `words` being 32 / bits levels in int32.

    `qweight` [in / words, out], `qzeros` [groups, out / words], `scales` [groups, out], `g_idx` [in].
    """

    num_bits: int  # 4 or 8
    zero_offset: int  # added to stored zero points: 1, or 0 in version 2

    def covers(self, names: Container[str], module: str) -> bool:
        """Return whether `module` is quantized."""
        return f"{module}.qweight" in names

    def read(self, take: TakeTensor, module: str) -> QuantizedWeight | Tensor:
        """Return its weight; as floats with `desc_act`, where groups are not runs of columns."""
        levels = unpack_words(take(f"{module}.qweight").T, self.num_bits)
        zero_points = unpack_words(take(f"{module}.qzeros"), self.num_bits).T
        # The sum wraps around, as the stored difference did.
        zero_points = (zero_points + self.zero_offset) & ((1 << self.num_bits) - 1)
        scales = take(f"{module}.scales").T
        groups = take(f"{module}.g_idx")
        return grouped_weight(levels, scales, zero_points, num_bits=self.num_bits, groups=groups)
