"""KV write: checks arguments and chooses the implementation."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from kernels.kv_write.cpu import write
from kernels.threads import num_threads


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's keys and values, in Blocks."""

    keys: Tensor  # [num_blocks, num_kv_heads, head_dim, block_size]
    values: Tensor  # [num_blocks, num_kv_heads, block_size, head_dim]

    @classmethod
    def allocate(
        cls, num_blocks: int, num_kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype
    ) -> Self:
        """Return a cache that takes memory page by page as it is first written."""

        def zeros(*shape: int) -> Tensor:
            # numpy asks the system for zeroed pages, where torch would write all of them now.
            memory = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
            return torch.from_numpy(memory).view(dtype).view(shape)

        return cls(
            keys=zeros(num_blocks, num_kv_heads, head_dim, block_size),
            values=zeros(num_blocks, num_kv_heads, block_size, head_dim),
        )


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMS normalisation of each query and key head before the rotation."""

    query: Tensor  # [head_dim] float32
    key: Tensor  # [head_dim] float32
    eps: float


def rotary_kv_write(
    qkv: Tensor,
    angles: Tensor,
    positions: Tensor,
    slots: Tensor,
    cache: LayerCache,
    norms: HeadNorms | None = None,
) -> Tensor:
    """Rotate queries and keys, store keys and values in their Slots, and return the queries.

    `qkv` is [num_rows, (num_heads + 2 * num_kv_heads) * head_dim] dense: query, key and value heads of each
    token. `angles` is [max_position, 2, head_dim / 2] float32, cosines then sines; `positions` [num_rows]
    int64 are rows of it, `slots` [num_rows] int64 are `block_id * block_size + offset`, none twice. The
    queries are [num_kv_heads, num_rows, group, head_dim] float32, those that share a KV head together. Pairs
    (x[i], x[i + head_dim / 2]) are rotated, as in the Llama checkpoints. Raises ValueError on shapes that do
    not fit. Source: Su et al., arXiv:2104.09864.
    """
    _, num_kv_heads, head_dim, block_size = cache.keys.shape
    num_rows, width = qkv.shape
    num_heads = width // head_dim - 2 * num_kv_heads
    if (
        num_rows != len(positions)
        or num_rows != len(slots)
        or width % head_dim
        or num_heads < 1
        or num_heads % num_kv_heads
        or angles.shape[1:] != (2, head_dim // 2)
        or head_dim % 2
        or not qkv.is_contiguous()
    ):
        raise ValueError(
            f"rotary_kv_write: qkv {tuple(qkv.shape)}, {len(positions)} positions, {len(slots)} slots, "
            f"angles {tuple(angles.shape)}, keys {tuple(cache.keys.shape)}"
        )
    num_parts = num_threads(num_rows * width)
    query = torch.empty(num_kv_heads, num_rows, num_heads // num_kv_heads, head_dim)
    scratch = torch.empty(num_parts * head_dim) if norms is not None else query
    write(
        num_parts,
        num_rows,
        norms is not None,
        qkv.data_ptr(),
        angles.data_ptr(),
        positions.data_ptr(),
        slots.data_ptr(),
        0 if norms is None else norms.query.data_ptr(),
        0 if norms is None else norms.key.data_ptr(),
        0.0 if norms is None else norms.eps,
        num_heads,
        num_kv_heads,
        head_dim,
        block_size,
        cache.keys.data_ptr(),
        cache.values.data_ptr(),
        query.data_ptr(),
        scratch.data_ptr(),
        qkv.dtype == torch.bfloat16,
        cache.keys.dtype == torch.bfloat16,
    )
    return query
