"""Rotary position embedding, in place over query and key heads at once."""

from kernels.rotary.op import apply_rotary_

__all__ = ["apply_rotary_"]
