"""The gated activation of a Gemma MLP."""

from kernels.gelu_mul.op import gelu_mul

__all__ = ["gelu_mul"]
