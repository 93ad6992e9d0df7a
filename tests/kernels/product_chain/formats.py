"""The formats of a chain's weights, on processors that can multiply them, whether or not the engine does."""

import pytest
import torch
from torch import Tensor

from kernels.compiled import has_feature
from kernels.quantization import Int8Weight, quantize_int8

can_multiply = pytest.mark.skipif(not (has_feature("avx2") and has_feature("fma")), reason="needs AVX2")
FORMATS = [
    pytest.param(dtype, marks=can_multiply, id=name)
    for name, dtype in (("int8", torch.int8), ("bf16", torch.bfloat16), ("f32", torch.float32))
]


def weight_in(format_: torch.dtype, weight: Tensor) -> Int8Weight | Tensor:
    """Return a float weight in a format of FORMATS."""
    return quantize_int8(weight) if format_ is torch.int8 else weight.to(format_)
