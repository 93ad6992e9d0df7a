"""Lists the builds that `gpu.py` launches."""

from kernels.ahead_of_time import Build

OPTIONS = ("temperatures", "top_ks", "top_ps", "min_ps", "uniforms")

BUILDS = tuple(
    Build(
        "sampling.sample",
        {
            "logits": logits,
            **dict.fromkeys(OPTIONS, "*fp64:16"),
            "out": "*i64:16",
            "row_stride": "i32:16",
            "vocab_size": "i32:16",
        },
        {"BLOCK": 2048},
        num_warps=8,
    )
    for logits in ("*bf16:16", "*fp32:16")
)
