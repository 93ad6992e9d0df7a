"""Reads AWQ checkpoints ("gemm"): words along the output, their columns interleaved."""

from collections.abc import Container
from dataclasses import dataclass

from torch import Tensor

from kernels.quantization import QuantizedWeight
from worker.engine.models.layouts.grouped import grouped_weight
from worker.engine.models.layouts.layout import TakeTensor
from worker.engine.models.layouts.words import unpack_words

# The nibble of a word that holds each of its eight columns.
NIBBLES = [0, 4, 1, 5, 2, 6, 3, 7]


@dataclass(frozen=True, slots=True)
class AwqLayout:
    """`qweight` int32 [in, out / 8], `qzeros` [groups, out / 8], `scales` [groups, out]; 4 bits."""

    def covers(self, names: Container[str], module: str) -> bool:
        """Return whether `module` is quantized."""
        return f"{module}.qweight" in names

    def read(self, take: TakeTensor, module: str) -> QuantizedWeight | Tensor:
        """Return its weight."""
        return grouped_weight(
            _in_order(take(f"{module}.qweight")).T,
            take(f"{module}.scales").T,
            _in_order(take(f"{module}.qzeros")).T,
            num_bits=4,
        )


def _in_order(words: Tensor) -> Tensor:
    return unpack_words(words, 4).view(*words.shape, 8)[..., NIBBLES].flatten(1)
