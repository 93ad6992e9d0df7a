"""Which implementation of an operator a tensor asks for."""

from torch import Tensor


def uses_triton(x: Tensor) -> bool:
    """Whether operators on `x` are Triton's, and not the CPU's."""
    return x.is_cuda
