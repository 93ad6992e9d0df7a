"""Moves tokens from Slot to Slot within one layer's cache."""

from torch import Tensor

from kernels.kv_write.cache import GpuLayerCache, PagedCache


def move_slots(cache: PagedCache, sources: Tensor, targets: Tensor) -> None:
    """Copy keys, values and their scales from some Slots to as many others.

    `sources` and `targets` [num_moved] are `block_id * block_size + offset`, integers on the cache's device;
    targets are all different. A Slot may be in both: all are read before any is written.
    """
    memories: tuple[Tensor | None, ...]
    if isinstance(cache, GpuLayerCache):
        memories = (cache.blocks, cache.scales)
    else:
        memories = (cache.keys.transpose(2, 3), cache.values, *(() if cache.scales is None else cache.scales))
    for memory in memories:  # [num_blocks, heads, block_size] and the numbers of a Slot
        if memory is not None:
            size = memory.shape[2]
            memory[targets // size, :, targets % size] = memory[sources // size, :, sources % size]
