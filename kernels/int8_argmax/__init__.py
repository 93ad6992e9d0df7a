"""The largest output of an int8 product for each row, for processors with AVX512 VNNI."""

from kernels.int8_argmax.op import int8_argmax, takes

__all__ = ["int8_argmax", "takes"]
