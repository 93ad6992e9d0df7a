"""Root-mean-square normalisation, alone or after a residual addition."""

from kernels.rms_norm.op import add_rms_norm, rms_norm

__all__ = ["add_rms_norm", "rms_norm"]
