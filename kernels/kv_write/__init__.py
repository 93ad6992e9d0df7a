"""New queries, keys and values: normalised, rotated, and the latter two written into the paged cache."""

from kernels.kv_write.op import HeadNorms, LayerCache, rotary_kv_write

__all__ = ["HeadNorms", "LayerCache", "rotary_kv_write"]
