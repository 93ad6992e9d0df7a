"""What a gate can go through."""

from enum import Enum


class Activation(Enum):
    """By the name that a kernel knows it under."""

    SILU = "silu"
    GELU = "gelu"  # its tanh form
