"""Times gemlite's products of the same weights where it is installed.

Install it with `pip install gemlite`; it needs Triton 3.6.

Source: github.com/mobiusml/gemlite; its weights are `(level - zero) * scale`, as ours are.
"""

import importlib
import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels.benchmarking import ABSENT, NONE, Timing, time_call
from kernels.quantization import Fp8Weight, Int4Weight, Int8Weight, QuantizedWeight
from kernels.quantization.int4 import MIDDLE
from kernels.quantization.nibbles import unpack_nibbles
from kernels.testing import assert_matches


def time_gemlite(
    x: Tensor, weight: QuantizedWeight, expected: Tensor, *, quantizes_tokens: bool = False
) -> Timing | str:
    """Time gemlite's product of bfloat16 tokens.

    Returns ABSENT where gemlite is not installed, and NONE where it lacks the format. With
    `quantizes_tokens`, both factors are in 8 bits. Raises AssertionError when the product does not match
    `expected`.
    """
    if importlib.util.find_spec("gemlite") is None:
        return ABSENT
    make = _maker(weight, quantizes_tokens=quantizes_tokens)
    if make is None:
        return NONE
    layer = make(importlib.import_module("gemlite.helper"))
    assert_matches(layer(x), expected)
    return time_call(partial(layer, x))


def _maker(weight: QuantizedWeight, *, quantizes_tokens: bool) -> Callable[[Any], Any] | None:
    """Return a function that makes a layer from gemlite's helper module, or None for a format it lacks."""
    if isinstance(weight, Int4Weight) and not quantizes_tokens:
        levels = unpack_nibbles(weight.packed)
        zeros = torch.full_like(weight.scales, MIDDLE) if weight.zero_points is None else weight.zero_points
        return lambda helper: helper.A16W4_HQQ_INT(dtype=torch.bfloat16).from_weights(
            levels, weight.scales.bfloat16().reshape(-1, 1), zeros.bfloat16().reshape(-1, 1)
        )
    if isinstance(weight, Int8Weight) and weight.zero_points is None:
        name = "A8W8_int8_dynamic" if quantizes_tokens else "A16W8_INT8"
        return partial(_eight_bits, name, weight.levels, weight.scales)
    if isinstance(weight, Fp8Weight) and weight.block == (1, weight.shape[1]):
        name = "A8W8_fp8_dynamic" if quantizes_tokens else "A16W8_FP8"
        return partial(_eight_bits, name, weight.levels, weight.scales)
    return None


def _eight_bits(name: str, levels: Tensor, scales: Tensor, helper: Any) -> Any:
    return getattr(helper, name)(dtype=torch.bfloat16).from_weights(levels, scales=scales.reshape(-1, 1))
