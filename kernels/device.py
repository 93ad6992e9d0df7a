"""Which implementation of an operator a tensor asks for, and what the GPU it lies on can do."""

import torch
from torch import Tensor


def uses_triton(x: Tensor) -> bool:
    """Whether operators on `x` are Triton's, and not the CPU's."""
    return x.is_cuda


def gpu_name(device: torch.device) -> str:
    """Return the name that tables are kept under; "any" where Triton interprets."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "any"


def converts_fp8(device: torch.device) -> bool:
    """Whether Triton's kernels can read float8_e4m3fn there: NVIDIA chips from Ada on, and AMD's."""
    if device.type != "cuda" or torch.version.hip is not None:
        return True
    return torch.cuda.get_device_capability(device) >= (8, 9)
