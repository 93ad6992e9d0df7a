"""Lists the builds that `gpu.py` may launch for the heads of Llama 3 8B, Qwen2 0.5B and Gemma 2 2B."""

import itertools
from typing import Any

import torch

from kernels.ahead_of_time import Build
from kernels.paged_attention.tiling import choose_tiling

MAX_MODEL_LEN = 32768
BLOCK_SEQUENCES = 256
# By cache format, the element type of a Block (None: that of the query) and its chips. Chips that do not
# convert float8_e4m3fn read its bits.
FORMATS = {
    "plain": ((None, ("sm_80", "sm_90", "gfx942")),),
    "int8": (("*i8:16", ("sm_80", "sm_90", "gfx942")),),
    "fp8": (("*fp8e4nv:16", ("sm_90",)), ("*u8:16", ("sm_80", "gfx942"))),
}
AMD = ("gfx942",)


def _builds(
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    kv_format: str,
    *,
    dtype: torch.dtype = torch.bfloat16,
    window: int = 0,
    has_soft_cap: bool = False,
) -> list[Build]:
    group = num_heads // num_kv_heads
    element = "*fp32:16" if dtype is torch.float32 else "*bf16:16"
    builds = []
    for has_prompts, is_amd in itertools.product((False, True), (False, True)):
        tiling = choose_tiling(
            group=group,
            head_dim=head_dim,
            dtype=dtype,
            kv_format=kv_format,
            max_model_len=MAX_MODEL_LEN,
            has_prompts=has_prompts,
            is_amd=is_amd,
        )
        shared: dict[str, Any] = {
            "NUM_KV_HEADS": num_kv_heads,
            "GROUP": group,
            "HEAD_DIM": head_dim,
            "WINDOW": window,
            "SPLIT_SIZE": tiling.split_size,
            "SPLIT_ROWS": tiling.split_rows,
            "BLOCK_D": head_dim,
        }
        has_scales = kv_format != "plain"
        builds += [
            Build(
                "paged_attention.paged_attention",
                {
                    "query": element,
                    "blocks": blocks or element,
                    **({"scales": "*fp32:16"} if has_scales else {}),
                    **dict.fromkeys(("block_tables", "query_starts", "context_lens"), "*i32:16"),
                    "tile_ends": "*i32:16",
                    "out": element,
                    "partial_out": "*fp32:16",
                    "partial_stats": "*fp32:16",
                    **dict.fromkeys(("scale", "soft_cap"), "fp32"),
                    **dict.fromkeys(("num_sequences", "table_stride", "max_splits"), "i32"),
                    "query_stride": "i32:16",
                },
                {
                    **({} if has_scales else {"scales": None}),
                    **shared,
                    "BLOCK_SIZE": 16,
                    "HAS_SOFT_CAP": has_soft_cap,
                    "FORMAT": kv_format,
                    "HAS_PROMPTS": has_prompts,
                    "ROWS_PER_TILE": tiling.rows_per_tile(group),
                    "BLOCK_SPLIT_M": tiling.block_split_m(group),
                    "BLOCK_TILE_M": tiling.block_tile_m,
                    "BLOCK_N": tiling.block_n,
                    "BLOCK_SEQUENCES": BLOCK_SEQUENCES,
                },
                num_warps=tiling.num_warps,
                num_stages=tiling.num_stages,
                targets=tuple(target for target in targets if (target in AMD) == is_amd),
            )
            for blocks, targets in FORMATS[kv_format]
        ]
        if kv_format == "plain" and has_prompts and not is_amd:
            pointers = {"query_starts": "*i32:16", "context_lens": "*i32:16"}
            builds.append(
                Build(
                    "paged_attention.plan_tiles",
                    {**pointers, "tile_ends": "*i32:16", "num_sequences": "i32"},
                    {
                        "WINDOW": window,
                        "SPLIT_SIZE": tiling.split_size,
                        "SPLIT_ROWS": tiling.split_rows,
                        "ROWS_PER_TILE": tiling.rows_per_tile(group),
                        "BLOCK_SEQUENCES": BLOCK_SEQUENCES,
                    },
                )
            )
            builds.append(
                Build(
                    "paged_attention.merge_splits",
                    {
                        **pointers,
                        "out": element,
                        "partial_out": "*fp32:16",
                        "partial_stats": "*fp32:16",
                        "max_splits": "i32",
                    },
                    {**shared, "BLOCK_SPLITS": 8},
                    num_warps=2,
                )
            )
    return builds


BUILDS = (
    *_builds(32, 8, 128, "plain"),
    *_builds(32, 8, 128, "int8"),
    *_builds(32, 8, 128, "fp8"),
    *_builds(32, 8, 128, "plain", dtype=torch.float32),
    *_builds(14, 2, 64, "plain"),
    *_builds(8, 4, 256, "plain", window=4096, has_soft_cap=True),
)
