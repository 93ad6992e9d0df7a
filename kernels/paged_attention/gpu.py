"""Plans a Step's paged attention on the device and launches it."""

import functools
from collections.abc import Collection

import torch
import triton
from torch import Tensor

from kernels.device import converts_fp8
from kernels.kv_write import GpuLayerCache
from kernels.paged_attention import kernel
from kernels.paged_attention.tiling import GpuAttentionPlan, Tiling, WindowTiles
from kernels.paged_attention.tree import MAX_TREE_ROWS

MAX_SEQUENCES = 4096  # what one program sums over; above it the plan needs another kernel
SPLITS_PER_LOAD = 8


def plan_attention(
    query_starts: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    cache: GpuLayerCache,
    tiling: Tiling,
    *,
    num_heads: int,
    max_query_len: int,
    max_context_len: int,
    windows: Collection[int | None] = (None,),
    hidden: Tensor | None = None,
) -> GpuAttentionPlan:
    """Cut a Step into tiles without waiting for the device.

    `query_starts`, `context_lens` and `block_tables` are as in GpuAttentionPlan. A Sequence without rows is
    padding and may hold any values; table entries past a Sequence's end are not read. `max_query_len` and
    `max_context_len` are upper bounds that the host knows: `max_query_len` is 1 for decode alone, and a CUDA
    graph needs bounds for every Step that it replays. `windows` are all windows with which `paged_attention`
    will be called. `hidden` is as in GpuAttentionPlan, by `hidden_places`; no window may be shorter than
    MAX_TREE_ROWS with it. Raises ValueError on shapes that do not fit.
    """
    _check_step(query_starts, context_lens, block_tables)
    if num_heads % cache.num_kv_heads:
        raise ValueError(
            f"plan_attention: {num_heads} heads are not a multiple of {cache.num_kv_heads} KV heads"
        )
    _check_windows(windows, MAX_TREE_ROWS if hidden is not None else 1)
    if max_query_len > 1 and not tiling.has_prompts:
        raise ValueError(f"plan_attention: max_query_len is {max_query_len} in a tiling without prompts")
    num_sequences = len(context_lens)
    group = num_heads // cache.num_kv_heads
    tiles = {}
    for window in windows:
        # A window that starts inside a split overlaps one split more than it fills.
        span = max_context_len if window is None else min(max_context_len, window)
        max_splits = triton.cdiv(span, tiling.split_size) + (span < max_context_len)
        tiles[window] = WindowTiles(torch.empty_like(context_lens), max_splits)
        kernel.plan_tiles[(1,)](
            query_starts,
            context_lens,
            tiles[window].tile_ends,
            num_sequences,
            WINDOW=window or 0,
            SPLIT_SIZE=tiling.split_size,
            ROWS_PER_TILE=tiling.rows_per_tile(group),
            BLOCK_SEQUENCES=sequence_lanes(num_sequences),
            num_warps=4,
        )
    partial_out = partial_stats = None
    most_splits = max(one.max_splits for one in tiles.values())
    if most_splits > 1:
        parts = (num_sequences, most_splits, num_heads)
        device = context_lens.device
        partial_out = torch.empty(*parts, cache.head_dim, dtype=torch.float32, device=device)
        partial_stats = torch.empty(*parts, 2, dtype=torch.float32, device=device)
    return GpuAttentionPlan(
        query_starts, context_lens, block_tables, hidden, tiling, tiles, partial_out, partial_stats
    )


def _check_windows(windows: Collection[int | None], least: int) -> None:
    if any(window is not None and window < least for window in windows):
        raise ValueError(f"plan_attention: windows must be at least {least}, not {windows}")


def _check_step(query_starts: Tensor, context_lens: Tensor, block_tables: Tensor) -> None:
    num_sequences = len(context_lens)
    if (
        query_starts.shape != (num_sequences + 1,)
        or block_tables.shape[:1] != (num_sequences,)
        or not 0 < num_sequences <= MAX_SEQUENCES
        or any(x.dtype is not torch.int32 for x in (query_starts, context_lens, block_tables))
        or block_tables.stride(1) != 1
    ):
        raise ValueError(
            f"plan_attention: arguments do not fit: query_starts {tuple(query_starts.shape)}, context_lens "
            f"{tuple(context_lens.shape)}, block_tables {tuple(block_tables.shape)}; each must be int32, for "
            f"at most {MAX_SEQUENCES} Sequences"
        )


def paged_attention(
    query: Tensor,
    cache: GpuLayerCache,
    plan: GpuAttentionPlan,
    scale: float,
    *,
    dtype: torch.dtype,
    window: int | None = None,
    soft_cap: float | None = None,
    num_programs: int | None = None,
) -> Tensor:
    """Return causal attention of every query row over its Sequence's cached context, in `dtype`.

    `query` is [num_rows, num_heads, head_dim] in `dtype`, dense except for its row stride; `cache` already
    holds the new tokens. The result is [num_rows, num_heads * head_dim]; rows past the plan's last are not
    written. With a `window`, a row reads only that many tokens, the last of them its own. With a `soft_cap`,
    scores are `soft_cap * tanh(score / soft_cap)`. Products are in the query's dtype, sums in float32.
    A decode row has the same bits in any Step, and so has a row of a prompt in chunks of several rows.
    `num_programs` share the work; None means as many as the device runs at once. Raises ValueError on shapes
    that do not fit.
    """
    _check_query(query, cache, plan, dtype=dtype, window=window)
    num_rows, num_heads, head_dim = query.shape
    tiles = plan.tiles[window]
    out = torch.empty(num_rows, num_heads * head_dim, dtype=query.dtype, device=query.device)
    shared = {
        "NUM_KV_HEADS": cache.num_kv_heads,
        "GROUP": num_heads // cache.num_kv_heads,
        "HEAD_DIM": head_dim,
        "WINDOW": window or 0,
        "SPLIT_SIZE": plan.tiling.split_size,
        "BLOCK_D": max(triton.next_power_of_2(head_dim), 16),
    }
    _attend(query, cache, plan, tiles, out, scale, soft_cap=soft_cap, num_programs=num_programs, **shared)
    if tiles.max_splits > 1:
        kernel.merge_splits[len(plan.context_lens), num_heads](
            plan.query_starts,
            plan.context_lens,
            out,
            plan.partial_out,
            plan.partial_stats,
            tiles.max_splits,
            BLOCK_SPLITS=SPLITS_PER_LOAD,
            num_warps=2,
            **shared,
        )
    return out


def _attend(
    query: Tensor,
    cache: GpuLayerCache,
    plan: GpuAttentionPlan,
    tiles: WindowTiles,
    out: Tensor,
    scale: float,
    *,
    soft_cap: float | None,
    num_programs: int | None,
    **shared: int,
) -> None:
    """Launch the kernel that writes `out`, or the parts of it that are merged afterwards."""
    num_sequences, tiling = len(plan.context_lens), plan.tiling
    group = shared["GROUP"]
    blocks = cache.blocks
    if cache.kv_format == "fp8" and converts_fp8(query.device):
        blocks = blocks.view(torch.float8_e4m3fn)
    num_tiles = num_sequences * tiles.max_splits + triton.cdiv(len(query), tiling.rows_per_tile(group))
    programs = num_programs or num_processors(query.device) * tiling.programs_per_processor
    kernel.paged_attention[(min(programs, num_tiles * cache.num_kv_heads),)](
        query,
        blocks,
        cache.scales,
        plan.block_tables,
        plan.query_starts,
        plan.context_lens,
        plan.hidden,
        tiles.tile_ends,
        out,
        plan.partial_out,
        plan.partial_stats,
        scale,
        soft_cap or 0.0,
        num_sequences,
        plan.block_tables.stride(0),
        tiles.max_splits,
        query.stride(0),
        BLOCK_SIZE=cache.block_size,
        HAS_SOFT_CAP=soft_cap is not None,
        FORMAT=cache.kv_format,
        HAS_PROMPTS=tiling.has_prompts,
        HAS_TREES=plan.hidden is not None,
        MAX_TREE_ROWS=MAX_TREE_ROWS,
        ROWS_PER_TILE=tiling.rows_per_tile(group),
        BLOCK_SPLIT_M=tiling.block_split_m(group),
        BLOCK_TILE_M=tiling.block_tile_m,
        BLOCK_N=tiling.block_n,
        BLOCK_SEQUENCES=sequence_lanes(num_sequences),
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
        **shared,
    )


def _check_query(
    query: Tensor, cache: GpuLayerCache, plan: GpuAttentionPlan, *, dtype: torch.dtype, window: int | None
) -> None:
    _, num_heads, head_dim = query.shape
    if (
        head_dim != cache.head_dim
        or num_heads % cache.num_kv_heads
        or query.stride(2) != 1
        or query.stride(1) != head_dim
    ):
        raise ValueError(
            f"paged_attention: query {tuple(query.shape)} with strides {query.stride()} does not fit the "
            f"cache {tuple(cache.blocks.shape)}"
        )
    if query.dtype is not dtype or (cache.scales is None and cache.blocks.dtype is not dtype):
        raise ValueError(
            f"paged_attention: query is {query.dtype} and cache {cache.blocks.dtype}, not {dtype}"
        )
    if window not in plan.tiles:
        raise ValueError(f"paged_attention: window {window} was not planned, only {list(plan.tiles)}")


def sequence_lanes(num_sequences: int) -> int:
    """Return the number of lanes for so many Sequences; few values exist, so few kernels are compiled."""
    lanes: int = triton.next_power_of_2(num_sequences)
    return max(lanes, 64)


@functools.cache
def num_processors(device: torch.device) -> int:
    """Return the number of a device's multiprocessors; 1 for a CPU, where Triton interprets."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
