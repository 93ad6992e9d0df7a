"""New queries, keys and values: normalised, rotated, and the latter two written into the paged cache."""

from kernels.kv_write.cache import GpuLayerCache, KVFormat, LayerCache, PagedCache
from kernels.kv_write.head_norms import HeadNorms
from kernels.kv_write.op import rotary_kv_write

__all__ = [
    "GpuLayerCache",
    "HeadNorms",
    "KVFormat",
    "LayerCache",
    "PagedCache",
    "rotary_kv_write",
]
