"""One layer's paged cache, as it lies on a CPU and on a GPU."""

import math
from dataclasses import dataclass
from typing import Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor

KVFormat = Literal["plain", "int8", "fp8"]


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's keys and values on a CPU, in Blocks."""

    keys: Tensor  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: Tensor  # [num_blocks, num_kv_heads, block_size, head_dim]
    scales: Tensor | None = None  # [2, num_blocks, num_kv_heads, block_size] float32, of int8 keys and values

    @classmethod
    def allocate(
        cls, num_blocks: int, num_kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype
    ) -> Self:
        """Return a cache that takes memory page by page as it is first written."""

        def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
            # numpy asks the system for zeroed pages, where torch would write all of them now.
            memory = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
            return torch.from_numpy(memory).view(dtype).view(shape)

        is_scaled = dtype == torch.int8
        return cls(
            keys=zeros(dtype, num_blocks, num_kv_heads, head_dim, block_size),
            values=zeros(dtype, num_blocks, num_kv_heads, block_size, head_dim),
            scales=zeros(torch.float32, 2, num_blocks, num_kv_heads, block_size) if is_scaled else None,
        )


@dataclass(frozen=True, slots=True)
class GpuLayerCache:
    """One layer's keys and values on a GPU, in Blocks.

    A token's head of an int8 or fp8 cache has one scale; a plain cache has none.
    """

    # [num_blocks, 2 * num_kv_heads, block_size, head_dim], key heads first; uint8 holds float8_e4m3fn bits.
    blocks: Tensor
    scales: Tensor | None  # [num_blocks, 2 * num_kv_heads, block_size] float32

    @classmethod
    def allocate(
        cls,
        num_blocks: int,
        num_kv_heads: int,
        block_size: int,
        head_dim: int,
        *,
        dtype: torch.dtype,
        kv_format: KVFormat = "plain",
        device: torch.device | str,
    ) -> Self:
        """Return a cache of unwritten Slots, which are never read; `dtype` is that of a plain one."""
        if kv_format not in get_args(KVFormat):
            raise ValueError(f"kv_format {kv_format!r} is none of {', '.join(get_args(KVFormat))}")
        rows = (num_blocks, 2 * num_kv_heads, block_size)
        if kv_format == "plain":
            return cls(torch.empty(*rows, head_dim, dtype=dtype, device=device), None)
        dtype = torch.int8 if kv_format == "int8" else torch.uint8
        return cls(
            torch.empty(*rows, head_dim, dtype=dtype, device=device),
            torch.empty(rows, dtype=torch.float32, device=device),
        )

    @property
    def kv_format(self) -> KVFormat:
        """How a Slot is stored."""
        if self.scales is None:
            return "plain"
        return "int8" if self.blocks.dtype is torch.int8 else "fp8"

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys, as many as of values."""
        return self.blocks.shape[1] // 2

    @property
    def block_size(self) -> int:
        """Slots in a Block."""
        return self.blocks.shape[2]

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.blocks.shape[3]


PagedCache = LayerCache | GpuLayerCache
