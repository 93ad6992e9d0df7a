"""Quantization of activations, one scale a token."""

from kernels.quantize_tokens.op import quantize_tokens

__all__ = ["quantize_tokens"]
