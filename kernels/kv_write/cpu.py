"""Head norms, rotation and cache write on a CPU, in one pass over the fused projection."""

import numpy as np

from kernels.compiled import Pointer, kernel
from kernels.kv_write.rotation import rotate
from kernels.simd import bfloat16_at, copy, float32_at, int64_at, load, store
from kernels.threads import fork, share


@kernel
def _write(
    part: int,
    num_parts: int,
    num_rows: int,
    is_normed: bool,
    qkv: Pointer,
    angles: Pointer,
    positions: Pointer,
    slots: Pointer,
    query_norm: Pointer,
    key_norm: Pointer,
    eps: float,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    keys: Pointer,
    values: Pointer,
    query: Pointer,
    scratch: Pointer,
) -> None:
    group, half = num_heads // num_kv_heads, head_dim // 2
    normed = part * head_dim  # this part's place in `scratch`
    begin, end = share(num_rows, part, num_parts)
    for row in range(begin, end):
        turn = positions[row] * head_dim
        block, offset = slots[row] // block_size, slots[row] % block_size
        for head in range(num_heads + num_kv_heads):
            at = (row * (num_heads + 2 * num_kv_heads) + head) * head_dim
            if is_normed:
                squares = np.float32(0)
                for index in range(head_dim):
                    squares += load(qkv, at + index) * load(qkv, at + index)
                scale = np.float32(1) / np.sqrt(squares / np.float32(head_dim) + np.float32(eps))
                weight = query_norm if head < num_heads else key_norm
                for index in range(head_dim):
                    store(scratch, normed + index, load(qkv, at + index) * scale * load(weight, index))
            if head < num_heads:
                target = ((head // group * num_rows + row) * group + head % group) * head_dim
                if is_normed:
                    rotate(half, scratch, normed, angles, turn, query, target, 1)
                else:
                    rotate(half, qkv, at, angles, turn, query, target, 1)
            else:
                target = (block * num_kv_heads + head - num_heads) * head_dim * block_size + offset
                if is_normed:
                    rotate(half, scratch, normed, angles, turn, keys, target, block_size)
                else:
                    rotate(half, qkv, at, angles, turn, keys, target, block_size)
        at = (row * (num_heads + 2 * num_kv_heads) + num_heads + num_kv_heads) * head_dim
        for head in range(num_kv_heads):
            target = ((block * num_kv_heads + head) * block_size + offset) * head_dim
            copy(head_dim, qkv, at + head * head_dim, values, target)


@kernel
def write(
    num_parts: int,
    num_rows: int,
    is_normed: bool,
    qkv: int,
    angles: int,
    positions: int,
    slots: int,
    query_norm: int,
    key_norm: int,
    eps: float,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    keys: int,
    values: int,
    query: int,
    scratch: int,
    is_bfloat16: bool,
    is_cache_bfloat16: bool,
) -> None:
    """Write queries, keys and values of all rows; arguments as in `rotary_kv_write`, by address."""
    if is_bfloat16:
        narrow = (
            num_rows,
            is_normed,
            bfloat16_at(qkv),
            float32_at(angles),
            int64_at(positions),
            int64_at(slots),
            float32_at(query_norm),
            float32_at(key_norm),
            eps,
            num_heads,
            num_kv_heads,
            head_dim,
            block_size,
            bfloat16_at(keys),
            bfloat16_at(values),
            float32_at(query),
            float32_at(scratch),
        )
        fork(_write, num_parts, narrow)
    elif is_cache_bfloat16:
        mixed = (
            num_rows,
            is_normed,
            float32_at(qkv),
            float32_at(angles),
            int64_at(positions),
            int64_at(slots),
            float32_at(query_norm),
            float32_at(key_norm),
            eps,
            num_heads,
            num_kv_heads,
            head_dim,
            block_size,
            bfloat16_at(keys),
            bfloat16_at(values),
            float32_at(query),
            float32_at(scratch),
        )
        fork(_write, num_parts, mixed)
    else:
        wide = (
            num_rows,
            is_normed,
            float32_at(qkv),
            float32_at(angles),
            int64_at(positions),
            int64_at(slots),
            float32_at(query_norm),
            float32_at(key_norm),
            eps,
            num_heads,
            num_kv_heads,
            head_dim,
            block_size,
            float32_at(keys),
            float32_at(values),
            float32_at(query),
            float32_at(scratch),
        )
        fork(_write, num_parts, wide)
