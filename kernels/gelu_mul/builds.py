"""What `gpu.py` launches."""

from kernels.ahead_of_time import Build

BUILDS = tuple(
    Build(
        "gelu_mul.gate_and_multiply",
        {"gate_up": dtype, "out": dtype, "gate_up_stride": "i32:16", "width": "i32:16"},
        {"BLOCK": 1024},
    )
    for dtype in ("*bf16:16", "*fp32:16")
)
