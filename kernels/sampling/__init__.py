"""Chooses next tokens on a GPU without waiting for the host; on a CPU, parts of what chooses them."""

from kernels.sampling.op import draw, keep_allowed, likeliest, sample

__all__ = ["draw", "keep_allowed", "likeliest", "sample"]
