"""Chooses the tile sizes of attention on a GPU, and holds the plan of a Step cut by them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

MIN_SPLIT_SIZE = 512
MAX_SPLITS = 64
HOPPER = "sm_90"


@dataclass(frozen=True, slots=True)
class Tiling:
    """Sizes of one kind of launch; `split_size`, `block_n` and `num_warps` fix the order of a row's sums."""

    has_prompts: bool  # whether a Sequence may have several rows; one row is split along its context
    split_size: int  # tokens of a split: fixed for an engine, so that a row's bits do not depend on its mates
    block_tile_m: int  # rows of the products in a prompt's tile: query rows times heads of a group
    block_n: int  # tokens at once
    num_warps: int
    num_stages: int
    programs_per_processor: int

    def rows_per_tile(self, group: int) -> int:
        """Return the number of a prompt's query rows in one tile."""
        return self.block_tile_m // group

    def block_split_m(self, group: int) -> int:
        """Return the number of product rows in a split, at least those of one matrix instruction."""
        return product_rows(group)


@dataclass(frozen=True, slots=True)
class WindowTiles:
    """A Step's tiles for one window; a short window leaves out the start of a context."""

    tile_ends: Tensor  # [num_sequences] int32: tiles of this Sequence and all before it
    max_splits: int


@dataclass(frozen=True, slots=True)
class GpuAttentionPlan:
    """A Step's rows as tiles, counted on the device; made once per Step.

    Tensors keep their addresses from capture to replay of a CUDA graph; only their contents change.
    """

    query_starts: Tensor  # [num_sequences + 1] int32: the first row of each Sequence, and the end
    context_lens: Tensor  # [num_sequences] int32: tokens up to and with the newest row
    block_tables: Tensor  # [num_sequences, max_blocks] int32
    hidden: Tensor | None  # [num_rows] int32: places that a row does not read; None: it reads all before it
    tiling: Tiling
    tiles: Mapping[int | None, WindowTiles]  # by window of the model's layers
    # The results of a context's splits, for the merge; None when there is never more than one split.
    partial_out: Tensor | None  # [num_sequences, max_splits, num_heads, head_dim] float32
    partial_stats: Tensor | None  # [..., 2] float32: the largest score, and the sum of weights


def choose_tiling(
    *,
    group: int,
    head_dim: int,
    dtype: torch.dtype,
    kv_format: str,
    max_model_len: int,
    has_prompts: bool,
    chip: str = "any",
) -> Tiling:
    """Return the tiling for a model and a kind of Step.

    `dtype` is the query's; `chip` is as `kernels.device.chip_name` says. `max_model_len` is the longest
    possible context, which determines the split size.
    """
    # These sizes fit the chips' registers and shared memory, as builds.py checks; those of 16 bits and narrow
    # heads were measured on an H100, all others are estimates. `block_n` and `num_warps` are the same with
    # and without prompts, or a decode row's bits would depend on other rows of its Step.
    is_plain, is_wide, is_amd = kv_format == "plain", head_dim > 128, chip.startswith("gfx")
    tile_m, block_n, num_warps, num_stages = 64, 64, 4 if is_amd else 8, 3
    if dtype is torch.float32:
        tile_m, block_n, num_stages = 32, 16 if is_wide else 32, 2
    elif is_wide:
        block_n, num_stages = 32, 2 if has_prompts and is_plain else 3
    elif chip == HOPPER:
        num_warps = 4
        if is_plain:
            num_stages = 2 if has_prompts else 3
        else:  # what was converted once serves all rows of a tile, and more tokens keep the loads going
            block_n = 128
    elif is_amd and not is_plain:
        block_n = 32
    return Tiling(
        has_prompts=has_prompts,
        split_size=choose_split_size(max_model_len),
        block_tile_m=max(tile_m, product_rows(group)),
        block_n=block_n,
        num_warps=num_warps,
        num_stages=num_stages,
        programs_per_processor=2,
    )


def product_rows(num_rows: int) -> int:
    """Return the row count of the smallest product that holds `num_rows`: a power of 2, at least 16."""
    return max(16, 1 << (num_rows - 1).bit_length())


def choose_split_size(max_model_len: int) -> int:
    """Return the least number of tokens in a split that leaves at most MAX_SPLITS for the merge."""
    size = MIN_SPLIT_SIZE
    while size * MAX_SPLITS < max_model_len:
        size *= 2
    return size
