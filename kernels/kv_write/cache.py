"""Memory layouts of one layer's paged KV cache, on a CPU and on a GPU."""

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
        """Return a cache whose memory pages are taken only when first written."""

        def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
            # numpy gets zeroed pages from the system; torch would write all of them now.
            memory = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
            return torch.from_numpy(memory).view(dtype).view(shape)

        is_scaled = dtype == torch.int8
        return cls(
            keys=zeros(dtype, num_blocks, num_kv_heads, head_dim, block_size),
            values=zeros(dtype, num_blocks, num_kv_heads, block_size, head_dim),
            scales=zeros(torch.float32, 2, num_blocks, num_kv_heads, block_size) if is_scaled else None,
        )

    @property
    def num_slots(self) -> int:
        """The number of tokens that all Blocks hold."""
        return self.keys.shape[0] * self.keys.shape[3]

    @property
    def num_bytes(self) -> int:
        """The bytes of all Blocks."""
        return self.keys.nbytes + self.values.nbytes + (0 if self.scales is None else self.scales.nbytes)


@dataclass(frozen=True, slots=True)
class GpuLayerCache:
    """One layer's keys and values on a GPU, in Blocks.

    An int8 or fp8 cache has one scale per token and head; a plain cache has none.
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
        """Return a cache of unwritten Slots, which are never read; `dtype` applies to a plain cache."""
        if kv_format not in get_args(KVFormat):
            raise ValueError(f"kv_format must be one of {', '.join(get_args(KVFormat))}, not {kv_format!r}")
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
        """The storage format of a Slot."""
        if self.scales is None:
            return "plain"
        return "int8" if self.blocks.dtype is torch.int8 else "fp8"

    @property
    def num_kv_heads(self) -> int:
        """The number of key heads, which equals that of value heads."""
        return self.blocks.shape[1] // 2

    @property
    def block_size(self) -> int:
        """The number of Slots in a Block."""
        return self.blocks.shape[2]

    @property
    def head_dim(self) -> int:
        """The width of a head."""
        return self.blocks.shape[3]


PagedCache = LayerCache | GpuLayerCache
