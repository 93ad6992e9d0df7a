"""Head norms, rotation and cache write on a CPU, in one pass over the fused projection."""

import numba
import numpy as np

from kernels.simd import kernel, load, parallel_kernel, share, store


@kernel
def _write(
    begin: int,
    end: int,
    qkv: np.ndarray,
    angles: np.ndarray,
    positions: np.ndarray,
    slots: np.ndarray,
    query_norm: np.ndarray,
    key_norm: np.ndarray,
    eps: float,
    num_heads: int,
    num_kv_heads: int,
    block_size: int,
    keys: np.ndarray,
    values: np.ndarray,
    query: np.ndarray,
) -> None:
    num_rows = positions.shape[0]
    head_dim = query.shape[0] // (num_rows * num_heads)
    half, group = head_dim // 2, num_heads // num_kv_heads
    rotated = np.empty(head_dim, dtype=np.float32)
    for row in range(begin, end):
        cos = positions[row] * head_dim
        block, offset = slots[row] // block_size, slots[row] % block_size
        start = row * (num_heads + 2 * num_kv_heads) * head_dim
        for head in range(num_heads + num_kv_heads):
            source = start + head * head_dim
            weight = query_norm if head < num_heads else key_norm
            scale = np.float32(1)
            if weight.shape[0]:
                squares = np.float32(0)
                for index in range(head_dim):
                    value = load(qkv, source + index)
                    squares += value * value
                scale = np.float32(1) / np.sqrt(squares / np.float32(head_dim) + np.float32(eps))
                for index in range(head_dim):
                    store(rotated, index, load(qkv, source + index) * scale * load(weight, index))
            else:
                for index in range(head_dim):
                    store(rotated, index, load(qkv, source + index))
            if head < num_heads:
                target = ((head // group * num_rows + row) * group + head % group) * head_dim
                for index in range(half):
                    first, second = load(rotated, index), load(rotated, half + index)
                    turn, lift = load(angles, cos + index), load(angles, cos + half + index)
                    store(query, target + index, first * turn - second * lift)
                    store(query, target + half + index, second * turn + first * lift)
            else:
                target = (block * num_kv_heads + head - num_heads) * head_dim * block_size + offset
                for index in range(half):
                    first, second = load(rotated, index), load(rotated, half + index)
                    turn, lift = load(angles, cos + index), load(angles, cos + half + index)
                    store(keys, target + index * block_size, first * turn - second * lift)
                    store(keys, target + (half + index) * block_size, second * turn + first * lift)
        for head in range(num_kv_heads):
            source = start + (num_heads + num_kv_heads + head) * head_dim
            target = ((block * num_kv_heads + head) * block_size + offset) * head_dim
            for index in range(head_dim):
                store(values, target + index, load(qkv, source + index))


@parallel_kernel
def rotate_and_write(
    num_parts: int,
    qkv: np.ndarray,
    angles: np.ndarray,
    positions: np.ndarray,
    slots: np.ndarray,
    query_norm: np.ndarray,
    key_norm: np.ndarray,
    eps: float,
    num_heads: int,
    num_kv_heads: int,
    block_size: int,
    keys: np.ndarray,
    values: np.ndarray,
    query: np.ndarray,
) -> None:
    """Run `_write` over all rows, in `num_parts` threads."""
    num_rows = positions.shape[0]
    for part in numba.prange(num_parts):
        begin, end = share(num_rows, part, num_parts)
        _write(
            begin,
            end,
            qkv,
            angles,
            positions,
            slots,
            query_norm,
            key_norm,
            eps,
            num_heads,
            num_kv_heads,
            block_size,
            keys,
            values,
            query,
        )
