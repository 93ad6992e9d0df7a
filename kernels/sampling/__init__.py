"""Chooses next tokens on a GPU without waiting for the host."""

from kernels.sampling.op import sample

__all__ = ["sample"]
