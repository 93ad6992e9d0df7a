"""The formats of a chain's weights, each with the processors that multiply it."""

import pytest
import torch
from torch import Tensor

from kernels.product_chain import is_available
from kernels.quantization import Int8Weight, quantize_int8

FORMATS = [
    pytest.param(dtype, marks=pytest.mark.skipif(not is_available(dtype), reason=f"needs {needs}"), id=name)
    for name, dtype, needs in (
        ("int8", torch.int8, "AVX512 VNNI, and no AMX"),
        ("bf16", torch.bfloat16, "AVX512_BF16, and no AMX"),
    )
]


def weight_in(format_: torch.dtype, weight: Tensor) -> Int8Weight | Tensor:
    """Return a float weight in a format of FORMATS."""
    return quantize_int8(weight) if format_ is torch.int8 else weight.to(format_)
