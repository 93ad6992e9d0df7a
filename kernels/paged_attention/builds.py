"""Lists the builds that `gpu.py` may launch for the heads of Llama 3 8B, Qwen2 0.5B and Gemma 2 2B."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from kernels.ahead_of_time import FP8_TARGETS, TARGETS, Build
from kernels.paged_attention.tiling import HOPPER, Tiling, choose_tiling
from kernels.paged_attention.tree import MAX_TREE_ROWS

MAX_MODEL_LEN = 32768
BLOCK_SEQUENCES = 256
# By cache format, the element type of a Block (None: that of the query) and its chips. Chips that do not
# convert float8_e4m3fn read its bits.
FORMATS = {
    "plain": ((None, tuple(TARGETS)),),
    "int8": (("*i8:16", tuple(TARGETS)),),
    "fp8": (
        ("*fp8e4nv:16", FP8_TARGETS),
        ("*u8:16", tuple(name for name in TARGETS if name not in FP8_TARGETS)),
    ),
}
# What Hopper spills of an 8-bit cache's tile, a thread: the tile that spills nothing takes a quarter longer.
SPILLED_BYTES = 192
PARTS = {"partial_out": "*fp32:16", "partial_stats": "*fp32:16"}


@dataclass(frozen=True, slots=True)
class Heads:
    """The attention of one model, with its cache's format and its query's dtype."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    kv_format: str = "plain"
    dtype: torch.dtype = torch.bfloat16
    window: int = 0
    has_soft_cap: bool = False
    has_trees: bool = False

    @property
    def group(self) -> int:
        """Number of query heads that share a KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def element(self) -> str:
        """The type of the query."""
        return "*fp32:16" if self.dtype is torch.float32 else "*bf16:16"

    def tiling(self, *, has_prompts: bool, chip: str) -> Tiling:
        """Return the sizes that an engine chooses for it."""
        return choose_tiling(
            group=self.group,
            head_dim=self.head_dim,
            dtype=self.dtype,
            kv_format=self.kv_format,
            max_model_len=MAX_MODEL_LEN,
            has_prompts=has_prompts,
            chip=chip,
        )

    def constants(self, tiling: Tiling) -> dict[str, Any]:
        """Return the constants that attention and the merge share."""
        return {
            "NUM_KV_HEADS": self.num_kv_heads,
            "GROUP": self.group,
            "HEAD_DIM": self.head_dim,
            "WINDOW": self.window,
            "SPLIT_SIZE": tiling.split_size,
            "BLOCK_D": self.head_dim,
        }


def _attention(heads: Heads, chip: str, *, has_prompts: bool) -> Iterator[Build]:
    tiling = heads.tiling(has_prompts=has_prompts, chip=chip)
    has_scales = heads.kv_format != "plain"
    for blocks in [blocks for blocks, targets in FORMATS[heads.kv_format] if chip in targets]:
        yield Build(
            "paged_attention.paged_attention",
            {
                "query": heads.element,
                "blocks": blocks or heads.element,
                **({"scales": "*fp32:16"} if has_scales else {}),
                **dict.fromkeys(("block_tables", "query_starts", "context_lens"), "*i32:16"),
                **({"hidden": "*i32:16"} if heads.has_trees else {}),
                "tile_ends": "*i32:16",
                "out": heads.element,
                **PARTS,
                **dict.fromkeys(("scale", "soft_cap"), "fp32"),
                **dict.fromkeys(("num_sequences", "table_stride", "max_splits"), "i32"),
                "query_stride": "i32:16",
            },
            {
                **({} if has_scales else {"scales": None}),
                **({} if heads.has_trees else {"hidden": None}),
                **heads.constants(tiling),
                "BLOCK_SIZE": 16,
                "HAS_SOFT_CAP": heads.has_soft_cap,
                "FORMAT": heads.kv_format,
                "HAS_PROMPTS": has_prompts,
                "HAS_TREES": heads.has_trees,
                "MAX_TREE_ROWS": MAX_TREE_ROWS,
                "ROWS_PER_TILE": tiling.rows_per_tile(heads.group),
                "BLOCK_SPLIT_M": tiling.block_split_m(heads.group),
                "BLOCK_TILE_M": tiling.block_tile_m,
                "BLOCK_N": tiling.block_n,
                "BLOCK_SEQUENCES": BLOCK_SEQUENCES,
            },
            num_warps=tiling.num_warps,
            num_stages=tiling.num_stages,
            targets=(chip,),
            spilled_bytes=SPILLED_BYTES if has_scales and chip == HOPPER else 0,
        )


def _plan_and_merge(heads: Heads) -> Iterator[Build]:
    tiling = heads.tiling(has_prompts=True, chip=HOPPER)
    pointers = {"query_starts": "*i32:16", "context_lens": "*i32:16"}
    yield Build(
        "paged_attention.plan_tiles",
        {**pointers, "tile_ends": "*i32:16", "num_sequences": "i32"},
        {
            "WINDOW": heads.window,
            "SPLIT_SIZE": tiling.split_size,
            "ROWS_PER_TILE": tiling.rows_per_tile(heads.group),
            "BLOCK_SEQUENCES": BLOCK_SEQUENCES,
        },
    )
    yield Build(
        "paged_attention.merge_splits",
        {**pointers, "out": heads.element, **PARTS, "max_splits": "i32"},
        {**heads.constants(tiling), "BLOCK_SPLITS": 8},
        num_warps=2,
    )


def _builds(heads: Heads) -> Iterator[Build]:
    for has_prompts, chip in itertools.product((False, True), TARGETS):
        if has_prompts or not heads.has_trees:
            yield from _attention(heads, chip, has_prompts=has_prompts)
    if heads.kv_format == "plain" and not heads.has_trees:
        yield from _plan_and_merge(heads)


MODELS = (
    Heads(32, 8, 128),
    Heads(32, 8, 128, "int8"),
    Heads(32, 8, 128, "fp8"),
    Heads(32, 8, 128, dtype=torch.float32),
    Heads(14, 2, 64),
    Heads(8, 4, 256, window=4096, has_soft_cap=True),
    Heads(32, 8, 128, has_trees=True),
    Heads(32, 8, 128, "int8", has_trees=True),
    Heads(14, 2, 64, window=4096, has_trees=True),
)
BUILDS = tuple(build for heads in MODELS for build in _builds(heads))
