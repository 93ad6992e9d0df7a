"""The gated activations of an MLP: SiLU (Llama) and GELU (Gemma)."""

from kernels.gate_mul.op import gelu_mul, silu_mul

__all__ = ["gelu_mul", "silu_mul"]
