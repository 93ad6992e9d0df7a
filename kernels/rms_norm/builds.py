"""Lists the builds that `gpu.py` may launch for models whose layers are 896, 4096 and 8192 wide."""

from kernels.ahead_of_time import Build

ROWS = {"weight": "*fp32:16", "out": "*bf16:16", "x_stride": "i32:16", "hidden": "i32:16", "eps": "fp32"}

BUILDS = tuple(
    build
    for block, num_warps in ((1024, 2), (4096, 8), (8192, 8))
    for build in (
        Build(
            "rms_norm.normalise",
            {"x": "*bf16:16", "residual": "*fp32:16", **ROWS},
            {"HAS_RESIDUAL": True, "BLOCK": block},
            num_warps=num_warps,
        ),
        Build(
            "rms_norm.normalise",
            {"x": "*fp32:16", **ROWS},
            {"residual": None, "HAS_RESIDUAL": False, "BLOCK": block},
            num_warps=num_warps,
        ),
    )
)
