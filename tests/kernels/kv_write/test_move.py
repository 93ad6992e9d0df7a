"""Tokens arrive in other Slots whole, and nothing else changes."""

from typing import get_args

import pytest
import torch
from torch import Tensor

from kernels.kv_write import GpuLayerCache, KVFormat, LayerCache, PagedCache, move_slots

BLOCKS, HEADS, SIZE, DIM = 5, 2, 4, 6


def slots_of(cache: PagedCache) -> list[Tensor]:
    """Copies of what each Slot holds: [num_slots, numbers]."""
    if isinstance(cache, GpuLayerCache):
        memories = [cache.blocks, *(() if cache.scales is None else (cache.scales.unsqueeze(-1),))]
    else:
        scales = () if cache.scales is None else cache.scales.unsqueeze(-1)
        memories = [cache.keys.transpose(2, 3), cache.values, *scales]
    return [one.transpose(1, 2).reshape(BLOCKS * SIZE, -1).clone() for one in memories]


def check(cache: PagedCache) -> None:
    """The second Slot is a source and a target, in an order in which one by one would lose it."""
    before = slots_of(cache)
    sources, targets = [1, 6, 18], [17, 1, 6]
    move_slots(cache, torch.tensor(sources), torch.tensor(targets))
    expected = list(range(BLOCKS * SIZE))
    for source, target in zip(sources, targets, strict=True):
        expected[target] = source
    for old, new in zip(before, slots_of(cache), strict=True):
        assert len(old.unique(dim=0)) == len(old), "each Slot is another"
        assert torch.equal(new, old[expected])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_on_a_cpu(dtype: torch.dtype, generator: torch.Generator) -> None:
    cache = LayerCache.allocate(BLOCKS, HEADS, SIZE, DIM, dtype)
    for memory in (cache.keys, cache.values, cache.scales):
        if memory is not None:
            memory.copy_(torch.randn(memory.shape, generator=generator) * 40)
    check(cache)


@pytest.mark.parametrize("kv_format", get_args(KVFormat))
def test_in_the_formats_of_a_gpu(kv_format: KVFormat, generator: torch.Generator) -> None:
    shape = (BLOCKS, HEADS, SIZE, DIM)
    cache = GpuLayerCache.allocate(*shape, dtype=torch.bfloat16, kv_format=kv_format, device="cpu")
    cache.blocks.copy_((torch.randn(cache.blocks.shape, generator=generator) * 40).abs())
    if cache.scales is not None:
        cache.scales.copy_(torch.rand(cache.scales.shape, generator=generator))
    check(cache)
