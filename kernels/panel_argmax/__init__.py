"""The largest output of a product in panels for each row, on x86."""

from kernels.panel_argmax.op import panel_argmax

__all__ = ["panel_argmax"]
