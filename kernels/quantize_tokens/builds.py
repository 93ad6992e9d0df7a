"""Lists the builds that `gpu.py` may launch for models whose layers are 4096 and 14336 wide."""

from kernels.ahead_of_time import FP8_TARGETS, TARGETS, Build

BUILDS = tuple(
    Build(
        "quantize_tokens.quantize",
        {"x": "*bf16:16", "levels": levels, "scales": "*fp32:16", "x_stride": "i32:16", "width": "i32:16"},
        {"LARGEST": largest, "BLOCK": block},
        num_warps=num_warps,
        targets=targets,
    )
    for block, num_warps in ((4096, 8), (16384, 16))
    for levels, largest, targets in (
        ("*i8:16", 127.0, tuple(TARGETS)),
        ("*fp8e4nv:16", 448.0, FP8_TARGETS),
    )
)
