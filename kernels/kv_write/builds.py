"""Lists the builds that `gpu.py` may launch for the heads of Llama 3 8B, Qwen2 0.5B and Gemma 2 2B."""

from typing import Any

from kernels.ahead_of_time import Build


def _builds(num_heads: int, num_kv_heads: int, head_dim: int, *, has_norms: bool) -> tuple[Build, ...]:
    norm: dict[str, Any] = {"query_norm": "*fp32:16", "key_norm": "*fp32:16"}
    none: dict[str, Any] = {"query_norm": None, "key_norm": None}
    return tuple(
        Build(
            "kv_write.rotary_kv_write",
            {
                "qkv": "*bf16:16",
                "angles": "*fp32:16",
                "positions": "*i32:16",
                "slots": "*i32:16",
                "eps": "fp32",
                "query": "*bf16:16",
                "blocks": blocks,
                "qkv_stride": "i32:16",
                **(norm if has_norms else {}),
                **({} if kv_format == "plain" else {"scales": "*fp32:16"}),
            },
            {
                **({} if has_norms else none),
                **({"scales": None} if kv_format == "plain" else {}),
                "NUM_HEADS": num_heads,
                "NUM_KV_HEADS": num_kv_heads,
                "HALF": head_dim // 2,
                "BLOCK_SIZE": 16,
                "HAS_NORMS": has_norms,
                "FORMAT": kv_format,
                "BLOCK_HEADS": 8,
                "BLOCK_HALF": head_dim // 2,
            },
            num_warps=2,
        )
        for kv_format, blocks in (("plain", "*bf16:16"), ("int8", "*i8:16"), ("fp8", "*u8:16"))
    )


BUILDS = (
    *_builds(32, 8, 128, has_norms=False),
    *_builds(32, 8, 128, has_norms=True),
    *_builds(14, 2, 64, has_norms=False),
    *_builds(8, 4, 256, has_norms=False),
)
