"""Head norms, rotation and the KV write on a GPU, with the cache in the formats attention reads."""

from dataclasses import dataclass
from typing import Literal, Self, get_args

import torch
import triton
from torch import Tensor

from kernels.kv_write import kernel

KVFormat = Literal["plain", "int8", "fp8"]
BLOCK_HEADS = 8


@dataclass(frozen=True, slots=True)
class GpuLayerCache:
    """One layer's Blocks. A token's head of an int8 or fp8 cache has one scale; "plain" has none."""

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
        """Return a cache of unwritten Slots; `dtype` is that of a plain one. Unwritten Slots are never read."""
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


def rotary_kv_write(
    qkv: Tensor,
    angles: Tensor,
    positions: Tensor,
    slots: Tensor,
    cache: GpuLayerCache,
    *,
    query_norm: Tensor | None = None,
    key_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Rotate queries and keys, store keys and values in their Slots, and return the queries.

    `qkv` is [num_rows, (num_heads + 2 * num_kv_heads) * head_dim], any row stride: query, key and value heads
    of each token. `angles` is [max_position, 2, head_dim / 2] float32, cosines then sines; `positions`
    [num_rows] integers are rows of it; `slots` [num_rows] integers are `block_id * block_size + offset`, none
    twice, and what has a negative Slot is padding and not written. With `query_norm` and `key_norm`
    [head_dim], each head is RMS-normalised first. Pairs (x[i], x[i + head_dim / 2]) are rotated, as in the
    Llama checkpoints. The result is [num_rows, num_heads, head_dim]. Raises ValueError on shapes that do not
    fit. Source: Su et al., arXiv:2104.09864.
    """
    num_rows, width = qkv.shape
    head_dim, num_kv_heads = cache.head_dim, cache.num_kv_heads
    num_heads = width // head_dim - 2 * num_kv_heads
    if (
        positions.shape != (num_rows,)
        or slots.shape != (num_rows,)
        or width % head_dim
        or num_heads < 1
        or head_dim % 2
        or angles.shape[1:] != (2, head_dim // 2)
        or angles.dtype is not torch.float32
        or qkv.stride(1) != 1
    ):
        raise ValueError(
            f"rotary_kv_write: qkv {tuple(qkv.shape)}, positions {tuple(positions.shape)}, slots "
            f"{tuple(slots.shape)}, angles {tuple(angles.shape)} {angles.dtype}, cache {tuple(cache.blocks.shape)}"
        )
    if (query_norm is None) != (key_norm is None):
        raise ValueError("rotary_kv_write: query_norm and key_norm come together")
    query = torch.empty(num_rows, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    if num_rows:
        programs = triton.cdiv(num_heads, BLOCK_HEADS) + 2 * triton.cdiv(num_kv_heads, BLOCK_HEADS)
        kernel.rotary_kv_write[num_rows, programs](
            qkv,
            angles,
            positions,
            slots,
            query_norm,
            key_norm,
            eps,
            query,
            cache.blocks,
            cache.scales,
            qkv.stride(0),
            NUM_HEADS=num_heads,
            NUM_KV_HEADS=num_kv_heads,
            HALF=head_dim // 2,
            BLOCK_SIZE=cache.block_size,
            HAS_NORMS=query_norm is not None,
            FORMAT=cache.kv_format,
            BLOCK_HEADS=BLOCK_HEADS,
            BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
            num_warps=2,
        )
    return query
