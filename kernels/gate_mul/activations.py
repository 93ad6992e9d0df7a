"""The activation functions of a gate."""

from enum import Enum


class Activation(Enum):
    """An activation function; its value is the name that kernels use."""

    SILU = "silu"
    GELU = "gelu"  # its tanh form
