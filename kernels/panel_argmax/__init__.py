"""The largest output of a product in int8 or bfloat16 for each row, for CPUs with AVX512."""

from kernels.panel_argmax.op import panel_argmax, takes

__all__ = ["panel_argmax", "takes"]
