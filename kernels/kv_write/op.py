"""Checks the arguments of the KV write and chooses the implementation."""

import torch
from torch import Tensor

from kernels.kv_write.cache import GpuLayerCache, LayerCache, PagedCache
from kernels.kv_write.cpu import WRITE, WriteCall
from kernels.kv_write.head_norms import HeadNorms
from kernels.simd import MARGIN
from kernels.threads import num_threads


def rotary_kv_write(
    qkv: Tensor,
    angles: Tensor,
    positions: Tensor,
    slots: Tensor,
    cache: PagedCache,
    norms: HeadNorms | None = None,
) -> Tensor:
    """Rotate queries and keys, store keys and values in their Slots, and return the queries.

    `qkv` is [num_rows, (num_heads + 2 * num_kv_heads) * head_dim] dense: query, key and value heads of each
    token. `angles` is [max_position, 2, head_dim / 2] float32, cosines then sines. `positions` [num_rows]
    index its rows; `slots` [num_rows] are `block_id * block_size + offset`, all different. Both are int64, on
    a GPU any integers. The queries have the shape that `paged_attention` takes: on a CPU [num_kv_heads,
    num_rows, group, head_dim] float32, grouped by the KV head they share; on a GPU [num_rows, num_heads,
    head_dim] in the dtype of `qkv`. Pairs (x[i], x[i + head_dim / 2]) are rotated, as in the Llama
    checkpoints. Raises ValueError on shapes and dtypes that do not fit. Source: Su et al., arXiv:2104.09864.
    """
    if isinstance(cache, GpuLayerCache):
        from kernels.kv_write import gpu  # noqa: PLC0415  (Triton is there with a GPU only)

        return gpu.rotary_kv_write(qkv, angles, positions, slots, cache, norms)
    return _write_on_cpu(qkv, angles, positions, slots, cache, norms)


def _write_on_cpu(
    qkv: Tensor, angles: Tensor, positions: Tensor, slots: Tensor, cache: LayerCache, norms: HeadNorms | None
) -> Tensor:
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
            f"rotary_kv_write: arguments do not fit: qkv {tuple(qkv.shape)}, {len(positions)} positions, "
            f"{len(slots)} slots, angles {tuple(angles.shape)}, keys {tuple(cache.keys.shape)}"
        )
    write = WRITE.get((qkv.dtype, cache.keys.dtype))
    if write is None:
        raise ValueError(f"rotary_kv_write: cannot write {qkv.dtype} into a cache of {cache.keys.dtype}")
    num_parts = num_threads(num_rows * width)
    query = torch.empty(num_kv_heads, num_rows, num_heads // num_kv_heads, head_dim)
    scratch = torch.empty(MARGIN + 2 * num_parts * head_dim)[MARGIN:]
    call = WriteCall(
        qkv.data_ptr(),
        cache.keys.data_ptr(),
        cache.values.data_ptr(),
        0 if cache.scales is None else cache.scales[0].data_ptr(),
        0 if cache.scales is None else cache.scales[1].data_ptr(),
        num_rows,
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
        query.data_ptr(),
        scratch.data_ptr(),
    )
    write(num_parts, tuple(call))
    return query
