"""Allocates what a kernel on a CPU works with: in one piece, as each tensor takes a microsecond or two."""

import torch
from torch import Tensor

from kernels.simd import MARGIN

CACHE_LINE = 64  # bytes
_BEFORE = MARGIN * 4  # bytes that are kept free before each part


def scratch(*sizes: int) -> tuple[Tensor, list[int]]:
    """Return memory that is to be kept, and the addresses in it of parts of so many bytes.

    Each part begins at a cache line, MARGIN floats or more behind the one before it.
    """
    offsets, end = [], CACHE_LINE
    for size in sizes:
        offsets.append(end + _BEFORE)
        end += _BEFORE - -size // CACHE_LINE * CACHE_LINE
    memory = torch.empty(end, dtype=torch.uint8)
    first = memory.data_ptr() // CACHE_LINE * CACHE_LINE
    return memory, [first + offset for offset in offsets]
