"""New queries, keys and values: normalised, rotated, and the latter two written into the paged cache."""

from kernels.kv_write.op import NO_NORMS, HeadNorms, LayerCache, rotary_kv_write

__all__ = ["NO_NORMS", "HeadNorms", "LayerCache", "rotary_kv_write"]
