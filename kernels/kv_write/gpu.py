"""Launches head norms, rotation and the KV write on a GPU, in the cache formats that attention reads."""

import torch
import triton
from torch import Tensor

from kernels.kv_write import kernel
from kernels.kv_write.cache import GpuLayerCache
from kernels.kv_write.head_norms import HeadNorms

BLOCK_HEADS = 8


def rotary_kv_write(
    qkv: Tensor,
    angles: Tensor,
    positions: Tensor,
    slots: Tensor,
    cache: GpuLayerCache,
    norms: HeadNorms | None = None,
) -> Tensor:
    """Rotate queries and keys, store keys and values in their Slots, and return the queries.

    `qkv` is [num_rows, (num_heads + 2 * num_kv_heads) * head_dim], any row stride: query, key and value heads
    of each token. `angles` is [max_position, 2, head_dim / 2] float32, cosines then sines; `positions`
    [num_rows] integers index its rows; `slots` [num_rows] integers are `block_id * block_size + offset`, all
    different. A row with a negative Slot is padding; its key and value are not written. Pairs
    (x[i], x[i + head_dim / 2]) are rotated, as in the Llama checkpoints. The result is [num_rows, num_heads,
    head_dim]. Raises ValueError on shapes that do not fit. Source: Su et al., arXiv:2104.09864.
    """
    num_rows, width = qkv.shape
    head_dim, num_kv_heads = cache.head_dim, cache.num_kv_heads
    num_heads = width // head_dim - 2 * num_kv_heads
    _check(qkv, angles, positions, slots, cache)
    query = torch.empty(num_rows, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    if num_rows:
        programs = triton.cdiv(num_heads, BLOCK_HEADS) + 2 * triton.cdiv(num_kv_heads, BLOCK_HEADS)
        kernel.rotary_kv_write[num_rows, programs](
            qkv,
            angles,
            positions,
            slots,
            None if norms is None else norms.query,
            None if norms is None else norms.key,
            0.0 if norms is None else norms.eps,
            query,
            cache.blocks,
            cache.scales,
            qkv.stride(0),
            NUM_HEADS=num_heads,
            NUM_KV_HEADS=num_kv_heads,
            HALF=head_dim // 2,
            BLOCK_SIZE=cache.block_size,
            HAS_NORMS=norms is not None,
            FORMAT=cache.kv_format,
            BLOCK_HEADS=BLOCK_HEADS,
            BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
            num_warps=2,
        )
    return query


def _check(qkv: Tensor, angles: Tensor, positions: Tensor, slots: Tensor, cache: GpuLayerCache) -> None:
    num_rows, width = qkv.shape
    head_dim = cache.head_dim
    if (
        positions.shape != (num_rows,)
        or slots.shape != (num_rows,)
        or width % head_dim
        or width // head_dim <= 2 * cache.num_kv_heads
        or head_dim % 2
        or angles.shape[1:] != (2, head_dim // 2)
        or angles.dtype is not torch.float32
        or qkv.stride(1) != 1
    ):
        raise ValueError(
            f"rotary_kv_write: arguments do not fit: qkv {tuple(qkv.shape)}, positions "
            f"{tuple(positions.shape)}, slots {tuple(slots.shape)}, angles {tuple(angles.shape)} "
            f"{angles.dtype}, cache {tuple(cache.blocks.shape)}"
        )
