"""Every format: within half a step, exact on what it can hold, of a known size, and picky about shapes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.quantization import (
    Fp8Weight,
    Int4Weight,
    Int8Weight,
    Nf4Weight,
    QuantizedWeight,
    quantize_fp8,
    quantize_heads,
    quantize_int4,
    quantize_int8,
    quantize_nf4,
)
from kernels.quantization import int8 as int8_module
from kernels.quantization.nf4 import LEVELS, NestedScales, nest_scales
from kernels.quantization.nibbles import pack_nibbles, unpack_nibbles

# Each with its bytes for a weight of 24 rows and 384 columns.
FORMATS: dict[str, tuple[Callable[[Tensor], QuantizedWeight], int]] = {
    "int8": (quantize_int8, 24 * 384 + 24 * 4),
    "int8-zero": (lambda w: quantize_int8(w, is_symmetric=False), 24 * 384 + 24 * 5),
    "int4-32": (lambda w: quantize_int4(w, group_size=32), 24 * 192 + 24 * 12 * 2),
    "int4-64": (lambda w: quantize_int4(w, group_size=64), 24 * 192 + 24 * 6 * 2),
    "int4-128-zero": (
        lambda w: quantize_int4(w, group_size=128, is_symmetric=False, scale_dtype=torch.float32),
        24 * 192 + 24 * 3 * 5,
    ),
    "fp8-tensor": (lambda w: quantize_fp8(w, block=(24, 384)), 24 * 384 + 4),
    "fp8-row": (quantize_fp8, 24 * 384 + 24 * 4),
    "fp8-block": (lambda w: quantize_fp8(w, block=(10, 100)), 24 * 384 + 3 * 4 * 4),
    "nf4": (quantize_nf4, 24 * 192 + 24 * 6 * 4),
    "nf4-nested": (lambda w: quantize_nf4(w, is_nested=True), 24 * 192 + 24 * 6 + 4 + 4),
}
# The root mean square error on normal values, as a share of their deviation; a little over what is found.
ERRORS = {
    "int8": 0.0085,
    "int8-zero": 0.0085,
    "int4-32": 0.095,
    "int4-64": 0.105,
    "int4-128-zero": 0.12,
    "fp8-tensor": 0.028,
    "fp8-row": 0.028,
    "fp8-block": 0.028,
    "nf4": 0.095,
    "nf4-nested": 0.096,
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_weight_comes_back_close_and_a_second_time_the_same(name: str, generator: torch.Generator) -> None:
    quantize, num_bytes = FORMATS[name]
    weight = torch.randn(24, 384, generator=generator)
    weight[3] *= 0.01  # rows are on their own, unless one scale serves all
    weight[7] = 0
    quantized = quantize(weight)
    assert quantized.shape == (24, 384)
    assert quantized.num_bytes == num_bytes
    back = quantized.dequantize()
    assert back.dtype == torch.float32
    assert (back[7] == 0).all()
    rows = [row for row in range(24) if row not in {3, 7}]
    assert (back - weight)[rows].square().mean().sqrt() < ERRORS[name]
    if name not in {"fp8-tensor", "fp8-block", "nf4-nested"}:
        assert (back - weight)[3].square().mean().sqrt() < 0.01 * ERRORS[name] * 1.2
    if name not in {"int4-32", "int4-64", "nf4-nested"}:  # whose range is found by trying, or is rounded
        torch.testing.assert_close(quantize(back).dequantize(), back, rtol=1e-5, atol=1e-7)


def test_what_int8_can_hold_is_exact(generator: torch.Generator) -> None:
    levels = torch.randint(-127, 128, (9, 40), generator=generator)
    levels[:, 0] = 127
    weight = levels * torch.logspace(-4, 4, 9, base=2).unsqueeze(1)
    found = quantize_int8(weight)
    assert torch.equal(found.levels, levels.to(torch.int8))
    assert torch.equal(found.dequantize(), weight)
    shifted = torch.randint(0, 256, (9, 40), generator=generator)
    shifted[:, 0], shifted[:, 1] = 0, 255
    weight = (shifted - torch.arange(0, 252, 28).unsqueeze(1)) * 0.25
    found = quantize_int8(weight, is_symmetric=False)
    assert torch.equal(found.dequantize(), weight)


@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("is_symmetric", [True, False])
def test_what_int4_can_hold_is_exact(group_size: int, is_symmetric: bool, generator: torch.Generator) -> None:
    levels = torch.randint(0, 16, (5, 256), generator=generator).unflatten(1, (-1, group_size))
    levels[..., 0], levels[..., 1] = 0, 15
    zeros = torch.full((5, 256 // group_size), 8)
    if not is_symmetric:
        zeros = torch.randint(0, 16, zeros.shape, generator=generator)
    weight = ((levels - zeros.unsqueeze(2)) * 0.5).flatten(1)
    found = quantize_int4(weight, group_size=group_size, is_symmetric=is_symmetric)
    assert torch.equal(found.dequantize(), weight)
    assert torch.equal(unpack_nibbles(found.packed), levels.flatten(1).to(torch.uint8))


def test_int4_puts_the_farthest_value_on_the_level_that_is_farthest_out() -> None:
    """With it on 15 a step would be a seventh of the largest value, not an eighth."""
    weight = torch.linspace(-0.5, 1, 32).unsqueeze(0)
    found = quantize_int4(weight, group_size=32)
    assert unpack_nibbles(found.packed)[0, -1] == 0
    assert (found.dequantize() - weight).abs().max() <= 1 / 16


def test_nf4_and_fp8_hold_their_own_levels(generator: torch.Generator) -> None:
    chosen = torch.randint(0, 16, (4, 128), generator=generator)
    chosen[:, ::64] = 15
    weight = torch.tensor(LEVELS)[chosen] * torch.tensor([0.25, 1, 2, 64]).unsqueeze(1)
    found = quantize_nf4(weight)
    assert torch.equal(unpack_nibbles(found.packed), chosen.to(torch.uint8))
    assert torch.equal(found.dequantize(), weight)
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    every = every[~every.isnan()].unsqueeze(0)
    assert torch.equal(quantize_fp8(every * 2).dequantize(), every * 2)


def test_fp8_blocks_do_not_see_each_other() -> None:
    weight = torch.ones(5, 7)
    weight[4, 6] = 1e4
    found = quantize_fp8(weight, block=(2, 3))
    assert found.scales.shape == (3, 3)
    assert (found.scales[:2] == 1 / 448).all()
    assert torch.equal(found.dequantize(), weight)


def test_nested_scales_are_within_half_a_step(generator: torch.Generator) -> None:
    scales = torch.rand(30, 20, generator=generator) + 1
    nested = nest_scales(scales)
    assert nested.scales.shape == (3,)
    assert (nested.dequantize() - scales).abs().max() <= nested.scales.max() * 0.5001


def test_nibbles_have_their_places(generator: torch.Generator) -> None:
    levels = torch.randint(0, 16, (3, 96), dtype=torch.uint8, generator=generator)
    packed = pack_nibbles(levels)
    assert torch.equal(unpack_nibbles(packed), levels)
    assert packed[1, 16] == levels[1, 32] + 16 * levels[1, 48]
    every = torch.arange(256, dtype=torch.uint8).view(2, 128)
    assert torch.equal(pack_nibbles(unpack_nibbles(every)), every)


@pytest.mark.parametrize("levels_dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_heads_come_back(levels_dtype: torch.dtype, generator: torch.Generator) -> None:
    x = torch.randn(6, 3, 40, generator=generator) * torch.logspace(-3, 3, 18).view(6, 3, 1)
    x[2, 1] = 0
    found = quantize_heads(x, levels_dtype)
    assert found.num_bytes == 6 * 3 * 44
    half = found.scales.unsqueeze(2) / 2
    if levels_dtype != torch.int8:
        half = x.abs() / 16 + found.scales.unsqueeze(2) * 2**-10
    assert ((found.dequantize() - x).abs() <= half * 1.0001).all()


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: quantize_int8(torch.zeros(3)), "int8: weight is"),
        (lambda: quantize_int8(torch.zeros(0, 4)), "int8: weight is"),
        (lambda: quantize_int4(torch.zeros(2, 96)), "96 columns in groups of 64"),
        (lambda: quantize_int4(torch.zeros(2, 96), group_size=48), "groups of 48"),
        (lambda: quantize_nf4(torch.zeros(2, 96)), "96 columns"),
        (lambda: quantize_fp8(torch.zeros(2, 96), block=(3, 1)), "blocks of"),
        (lambda: quantize_heads(torch.zeros(2, 96)), "num_heads"),
        (lambda: quantize_heads(torch.zeros(2, 3, 4), torch.int16), "dtype"),
        (lambda: pack_nibbles(torch.zeros(1, 33, dtype=torch.uint8)), "33 columns"),
        (lambda: pack_nibbles(torch.full((1, 32), 16, dtype=torch.uint8)), "up to 16"),
        (lambda: Int8Weight(torch.zeros(2, 3, dtype=torch.int8), torch.ones(3)), "scales"),
        (
            lambda: Int8Weight(torch.zeros(2, 3, dtype=torch.int8), torch.ones(2), torch.zeros(3)),
            "zero_points",
        ),
        (lambda: Int4Weight(torch.zeros(2, 64, dtype=torch.uint8), torch.ones(2, 3)), "3 groups"),
        (lambda: Int4Weight(torch.zeros(2, 64, dtype=torch.uint8), torch.ones(3, 2)), "scales"),
        (
            lambda: Int4Weight(torch.zeros(2, 64, dtype=torch.uint8), torch.ones(2, 2), torch.ones(2, 1)),
            "zero_points",
        ),
        (lambda: Fp8Weight(torch.zeros(4, 4), torch.ones(4, 1), (2, 4)), "scales are"),
        (lambda: Nf4Weight(torch.zeros(2, 64, dtype=torch.uint8), torch.ones(2, 3)), "scales"),
        (
            lambda: Nf4Weight(
                torch.zeros(2, 64, dtype=torch.uint8),
                NestedScales(torch.zeros(1, 2, dtype=torch.int8), torch.ones(1), torch.zeros(1)),
            ),
            "scales",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make()


@pytest.mark.parametrize("is_symmetric", [True, False])
def test_int8_of_a_large_weight_is_that_of_its_rows(
    is_symmetric: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.randn(50, 12, generator=torch.Generator().manual_seed(0))
    given = weight.clone()
    at_once = quantize_int8(weight, is_symmetric=is_symmetric)
    assert torch.equal(weight, given)
    monkeypatch.setattr(int8_module, "ELEMENTS_AT_ONCE", 100)
    in_parts = quantize_int8(weight, is_symmetric=is_symmetric)
    assert torch.equal(in_parts.levels, at_once.levels)
    assert torch.equal(in_parts.scales, at_once.scales)
    assert torch.equal(in_parts.dequantize(), at_once.dequantize())
