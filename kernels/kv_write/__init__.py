"""Normalises and rotates new queries and keys, and writes new keys and values into the paged cache."""

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
