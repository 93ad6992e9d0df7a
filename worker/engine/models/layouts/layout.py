"""What the loader asks of a layout."""

from collections.abc import Callable, Container
from typing import Protocol

from torch import Tensor

from kernels.quantization import QuantizedWeight

# A tensor of the checkpoint as it is stored, by name; raises CheckpointError if there is none.
TakeTensor = Callable[[str], Tensor]


class Layout(Protocol):
    """One way of storing the weights of a checkpoint."""

    def covers(self, names: Container[str], module: str) -> bool:
        """Return whether `module` is quantized, from the names of all tensors."""

    def read(self, take: TakeTensor, module: str) -> QuantizedWeight | Tensor:
        """Return its weight; as floats [out_features, in_features] where no format of ours holds it.

        Raises ValueError where tensors do not fit together.
        """
