"""Head norms, rotation and cache write on a CPU, in one pass over the fused projection."""

from collections.abc import Callable
from functools import cache

import numba
import numpy as np

from kernels.simd import kernel, load, parallel_kernel, rotate, share, store


@cache
def write_kernel(head_dim: int, block_size: int) -> Callable[..., None]:
    """Return the kernel for one shape of Block; its arguments are those of `run` below."""
    half = head_dim // 2

    @kernel
    def write(
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
        keys: np.ndarray,
        values: np.ndarray,
        query: np.ndarray,
    ) -> None:
        num_rows, group = positions.shape[0], num_heads // num_kv_heads
        normed = np.empty(head_dim, dtype=np.float32)
        for row in range(begin, end):
            turn = positions[row] * head_dim
            block, offset = slots[row] // block_size, slots[row] % block_size
            for head in range(num_heads + num_kv_heads):
                at = (row * (num_heads + 2 * num_kv_heads) + head) * head_dim
                weight = query_norm if head < num_heads else key_norm
                is_normed = weight.shape[0] > 0
                if is_normed:
                    squares = np.float32(0)
                    for index in range(head_dim):
                        squares += load(qkv, at + index) * load(qkv, at + index)
                    scale = np.float32(1) / np.sqrt(squares / np.float32(head_dim) + np.float32(eps))
                    for index in range(head_dim):
                        store(normed, index, load(qkv, at + index) * scale * load(weight, index))
                if head < num_heads:
                    target = ((head // group * num_rows + row) * group + head % group) * head_dim
                    if is_normed:
                        rotate(half, normed, 0, angles, turn, query, target, 1)
                    else:
                        rotate(half, qkv, at, angles, turn, query, target, 1)
                else:
                    target = (block * num_kv_heads + head - num_heads) * head_dim * block_size + offset
                    if is_normed:
                        rotate(half, normed, 0, angles, turn, keys, target, block_size)
                    else:
                        rotate(half, qkv, at, angles, turn, keys, target, block_size)
            at = (row * (num_heads + 2 * num_kv_heads) + num_heads + num_kv_heads) * head_dim
            for head in range(num_kv_heads):
                target = ((block * num_kv_heads + head) * block_size + offset) * head_dim
                for index in range(head_dim):
                    store(values, target + index, load(qkv, at + head * head_dim + index))

    @parallel_kernel
    def run(
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
        keys: np.ndarray,
        values: np.ndarray,
        query: np.ndarray,
    ) -> None:
        for part in numba.prange(num_parts):
            begin, end = share(positions.shape[0], part, num_parts)
            write(
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
                keys,
                values,
                query,
            )

    return run
