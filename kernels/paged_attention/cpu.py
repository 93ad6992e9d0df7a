"""Paged attention on a CPU: scores and mixtures from tiles in registers, straight from the Blocks.

A Block holds its keys with the tokens innermost, so one tile gives the scores of `block_size` tokens at once
and nothing is summed across a register.
"""

from collections.abc import Callable
from functools import cache

import numba
import numpy as np

from kernels.simd import (
    MAX_TILE_ROWS,
    exp,
    kernel,
    load,
    maximum,
    multiply_tile,
    parallel_kernel,
    store,
    tanh,
)
from kernels.simd import tile_rows as rows_of_a_tile

# Query vectors that share a KV head and run together, so that a Block they read is read once from the L1 cache.
VECTORS_PER_ITEM = 3 * MAX_TILE_ROWS


@cache
def attention_kernel(head_dim: int, block_size: int) -> Callable[..., None]:
    """Return the kernel for one shape of Block; its arguments are those of `run` below."""
    score_rows, mix_rows = rows_of_a_tile(block_size), rows_of_a_tile(head_dim)

    @kernel
    def attend(
        part: int,
        num_parts: int,
        query: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        tables: np.ndarray,
        positions: np.ndarray,
        first_rows: np.ndarray,
        num_rows: np.ndarray,
        table_rows: np.ndarray,
        num_kv_heads: int,
        group: int,
        scale: float,
        soft_cap: float,
        window: int,
        scratch: np.ndarray,
        out: np.ndarray,
    ) -> None:
        total_rows = positions.shape[0]
        score_scale, cap = np.float32(scale), np.float32(soft_cap)
        block_floats = head_dim * block_size
        memory = scratch[part]
        for task in range(part, first_rows.shape[0] * num_kv_heads, num_parts):
            item, head = task // num_kv_heads, task % num_kv_heads
            first, count, table = first_rows[item], num_rows[item], table_rows[item]
            num_vectors = count * group
            context = positions[first + count - 1] + 1
            begin = max(0, positions[first] + 1 - window)
            first_block, end_block = begin // block_size, (context + block_size - 1) // block_size
            width = (end_block - first_block) * block_size
            mixed = num_vectors * width  # where the mixtures start in `memory`, after the scores
            for index in range(mixed + num_vectors * head_dim):
                store(memory, index, 0)
            query_start = (head * total_rows + first) * group * head_dim
            for block in range(first_block, end_block):
                at = (tables[table, block] * num_kv_heads + head) * block_floats
                for vector in range(0, num_vectors, score_rows):
                    multiply_tile(
                        min(score_rows, num_vectors - vector),
                        block_size,
                        head_dim,
                        memory,
                        vector * width + (block - first_block) * block_size,
                        width,
                        query,
                        query_start + vector * head_dim,
                        head_dim,
                        keys,
                        at,
                        block_size,
                    )
            for vector in range(num_vectors):
                position = positions[first + vector // group]
                start = vector * width - first_block * block_size
                low, high = start + max(0, position + 1 - window), start + position + 1
                if cap > 0:
                    for index in range(low, high):
                        store(memory, index, cap * tanh(load(memory, index) * (score_scale / cap)))
                else:
                    for index in range(low, high):
                        store(memory, index, load(memory, index) * score_scale)
                peak = np.float32(-3e38)
                for index in range(low, high):
                    peak = maximum(peak, load(memory, index))
                total = np.float32(0)
                for index in range(low, high):
                    weight = exp(load(memory, index) - peak)
                    store(memory, index, weight)
                    total += weight
                share = np.float32(1) / total
                for index in range(low, high):
                    store(memory, index, load(memory, index) * share)
                for index in range(vector * width, low):
                    store(memory, index, 0)
                for index in range(high, (vector + 1) * width):
                    store(memory, index, 0)
            for block in range(first_block, end_block):
                at = (tables[table, block] * num_kv_heads + head) * block_floats
                depth = min(block_size, context - block * block_size)
                for vector in range(0, num_vectors, mix_rows):
                    multiply_tile(
                        min(mix_rows, num_vectors - vector),
                        head_dim,
                        depth,
                        memory,
                        mixed + vector * head_dim,
                        head_dim,
                        memory,
                        vector * width + (block - first_block) * block_size,
                        width,
                        values,
                        at,
                        head_dim,
                    )
            for vector in range(num_vectors):
                row = first + vector // group
                target = ((row * num_kv_heads + head) * group + vector % group) * head_dim
                for index in range(head_dim):
                    store(out, target + index, load(memory, mixed + vector * head_dim + index))

    @parallel_kernel
    def run(
        num_parts: int,
        query: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        tables: np.ndarray,
        positions: np.ndarray,
        first_rows: np.ndarray,
        num_rows: np.ndarray,
        table_rows: np.ndarray,
        num_kv_heads: int,
        group: int,
        scale: float,
        soft_cap: float,
        window: int,
        scratch: np.ndarray,
        out: np.ndarray,
    ) -> None:
        for part in numba.prange(num_parts):
            attend(
                np.int64(part),
                num_parts,
                query,
                keys,
                values,
                tables,
                positions,
                first_rows,
                num_rows,
                table_rows,
                num_kv_heads,
                group,
                scale,
                soft_cap,
                window,
                scratch,
                out,
            )

    return run
