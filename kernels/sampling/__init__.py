"""The choice of next tokens on a GPU, without a wait for the host."""

from kernels.sampling.op import sample

__all__ = ["sample"]
