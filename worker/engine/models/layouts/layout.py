"""Defines the interface of a layout."""

from collections.abc import Callable, Container
from typing import Protocol

from torch import Tensor

from kernels.quantization import QuantizedWeight

# Returns a stored tensor of the checkpoint by name; raises CheckpointError if there is none.
TakeTensor = Callable[[str], Tensor]


class Layout(Protocol):
    """One way of storing the weights of a checkpoint."""

    def covers(self, names: Container[str], module: str) -> bool:
        """Return whether `module` is quantized, from the names of all tensors."""

    def read(self, take: TakeTensor, module: str) -> QuantizedWeight | Tensor:
        """Return its weight; as floats [out_features, in_features] if no format of ours can hold it.

        Raises ValueError if its tensors do not fit together.
        """
