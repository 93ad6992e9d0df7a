"""Lists the builds that `gpu.py` launches."""

from kernels.ahead_of_time import Build
from kernels.gate_mul.activations import Activation

BUILDS = tuple(
    Build(
        "gate_mul.gate_and_multiply",
        {"gate_up": dtype, "out": dtype, "gate_up_stride": "i32:16", "width": "i32:16"},
        {"ACTIVATION": activation.value, "BLOCK": 1024},
    )
    for activation in Activation
    for dtype in ("*bf16:16", "*fp32:16")
)
