"""Normalises and rotates queries and keys, writes keys and values into the paged cache, and moves them."""

from kernels.kv_write.cache import GpuLayerCache, KVFormat, LayerCache, PagedCache
from kernels.kv_write.head_norms import HeadNorms
from kernels.kv_write.move import move_slots
from kernels.kv_write.op import rotary_kv_write

__all__ = [
    "GpuLayerCache",
    "HeadNorms",
    "KVFormat",
    "LayerCache",
    "PagedCache",
    "move_slots",
    "rotary_kv_write",
]
