"""Quantization of activations with one scale per token."""

from kernels.quantize_tokens.op import quantize_tokens

__all__ = ["quantize_tokens"]
