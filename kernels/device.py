"""Selects the implementation for a tensor's device, and reports what a GPU or the CPU can do."""

import functools

import torch
from torch import Tensor


def uses_triton(x: Tensor) -> bool:
    """Return whether operators on `x` run in Triton rather than on the CPU."""
    return x.is_cuda


@functools.cache
def chip_name(device: torch.device) -> str:
    """Return a GPU's architecture as the tables use it, like sm_90; "any" where Triton interprets."""
    if device.type != "cuda":
        return "any"
    if torch.version.hip is not None:
        return str(torch.cuda.get_device_properties(device).gcnArchName).partition(":")[0]
    return "sm_{}{}".format(*torch.cuda.get_device_capability(device))


@functools.cache
def converts_fp8(device: torch.device) -> bool:
    """Return whether Triton's kernels can convert float8_e4m3fn there: on NVIDIA from Ada on, and on AMD.

    AMD chips before CDNA4 convert it in several instructions. Triton's interpreter converts it, too.
    """
    if device.type != "cuda" or torch.version.hip is not None:
        return True
    return torch.cuda.get_device_capability(device) >= (8, 9)


@functools.cache
def multiplies_bfloat16() -> bool:
    """Return whether this CPU multiplies bfloat16 faster than float32 (AVX512_BF16 or AMX)."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()  # noqa: SLF001
