"""Weights that stay narrow in memory, in chains."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.panel_argmax import panel_argmax
from kernels.product_chain import (
    After,
    Chain,
    Link,
    NarrowPanels,
    PanelWeight,
    op,
    pack_narrow,
    pack_panels,
    run_chain,
    unpacks,
)
from kernels.quantization import (
    Fp8Weight,
    Nf4Weight,
    QuantizedWeight,
    quantize_fp8,
    quantize_int4,
    quantize_int8,
)
from kernels.testing import assert_matches
from kernels.weight_only_linear import pack_tiled_weight
from kernels.weight_only_linear.cases import FORMATS

DTYPES = [
    pytest.param(dtype, marks=pytest.mark.skipif(not unpacks(dtype), reason="not unpacked here"), id=name)
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16))
]
in_every_dtype = pytest.mark.parametrize("dtype", DTYPES)
# The last panel is not whole.
OUT_FEATURES, IN_FEATURES = 150, 256


def narrow(weight: QuantizedWeight, dtype: torch.dtype, bias: Tensor | None = None) -> NarrowPanels:
    packed = pack_narrow(pack_tiled_weight(weight, bias), dtype)
    assert packed is not None
    return packed


def has_zero_points(weight: QuantizedWeight) -> bool:
    return not isinstance(weight, Fp8Weight | Nf4Weight) and weight.zero_points is not None


@in_every_dtype
@pytest.mark.parametrize("num_rows", [1, 5, 9])
@pytest.mark.parametrize("quantize", FORMATS.values(), ids=FORMATS)
def test_a_product_is_that_of_the_same_weight_in_floats(
    quantize: Callable[[Tensor], QuantizedWeight],
    num_rows: int,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> None:
    weight = quantize(torch.randn(OUT_FEATURES, IN_FEATURES, generator=generator) / IN_FEATURES**0.5)
    bias = torch.randn(OUT_FEATURES, generator=generator)
    x = torch.randn(num_rows, IN_FEATURES, generator=generator)
    actual = run_chain(Chain([Link(narrow(weight, dtype, bias))]), x)
    expected = run_chain(Chain([Link(pack_panels(weight.dequantize().to(dtype), bias))]), x)
    if has_zero_points(weight):  # here a level less its zero point is rounded once only
        assert_matches(actual.to(dtype), expected.to(dtype))
    else:
        assert torch.equal(actual, expected)


@in_every_dtype
@pytest.mark.parametrize("quantize", [quantize_int8, quantize_fp8], ids=["int8", "fp8"])
@pytest.mark.parametrize("in_features", [1, 77])
def test_columns_may_be_odd(
    quantize: Callable[[Tensor], QuantizedWeight],
    in_features: int,
    dtype: torch.dtype,
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = quantize(torch.randn(70, in_features, generator=generator))
    x = torch.randn(3, in_features, generator=generator)
    expected = run_chain(Chain([Link(pack_panels(weight.dequantize().to(dtype)))]), x)
    chain, empty = Chain([Link(narrow(weight, dtype))]), torch.empty
    # What lay there before has no say: as bfloat16, these bytes are NaN.
    monkeypatch.setattr(torch, "empty", lambda *shape, **kind: empty(*shape, **kind).fill_(255))
    assert torch.equal(run_chain(chain, x), expected)


@in_every_dtype
def test_narrow_links_stand_beside_others_and_a_row_has_the_same_bits_in_any_batch(
    dtype: torch.dtype, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, width, norm = 128, 320, torch.rand(128, generator=generator) + 0.5

    def weight(rows: int, columns: int) -> Tensor:
        found: Tensor = torch.randn(rows, columns, generator=generator) / columns**0.5
        return found

    int4, fp8 = quantize_int4(weight(2 * width, hidden)), quantize_fp8(weight(hidden, width))
    first, last = weight(hidden, 64).to(dtype), weight(90, hidden).to(dtype)

    def chain_of(gate_up: PanelWeight | NarrowPanels, down: PanelWeight | NarrowPanels) -> Chain:
        return Chain(
            [
                Link(pack_panels(first), After.NORM, norm),
                Link(gate_up, After.SILU),
                Link(down, After.NORM, norm),
                Link(pack_panels(last)),
            ],
            1e-5,
        )

    chain = chain_of(narrow(int4, dtype), narrow(fp8, dtype))
    floats = chain_of(*(pack_panels(one.dequantize().to(dtype)) for one in (int4, fp8)))
    x, residual = (torch.randn(300, columns, generator=generator) for columns in (64, hidden))

    def run(chain: Chain, rows: slice, num_threads: int, split: tuple[bool, int]) -> Tensor:
        monkeypatch.setattr(op, "num_threads", lambda _: num_threads)
        monkeypatch.setattr(op, "_split", lambda *_: split)
        return run_chain(chain, x[rows].contiguous(), residual[rows].clone())

    expected = run(floats, slice(0, 300), 1, (False, 32))
    for rows in (slice(0, 1), slice(100, 117), slice(0, 300)):
        for num_threads, split in ((1, (False, 5)), (2, (False, 13)), (2, (True, 256)), (3, (True, 64))):
            assert torch.equal(run(chain, rows, num_threads, split), expected[rows])


@in_every_dtype
def test_the_largest_product_is_found(dtype: torch.dtype, generator: torch.Generator) -> None:
    quantized = quantize_int4(torch.randn(OUT_FEATURES, IN_FEATURES, generator=generator))
    weight = narrow(quantized, dtype, torch.randn(OUT_FEATURES, generator=generator))
    for num_rows in (3, 40):
        x = torch.randn(num_rows, IN_FEATURES, generator=generator)
        assert torch.equal(panel_argmax(x, weight), run_chain(Chain([Link(weight)]), x).argmax(dim=1))


def test_groups_of_an_odd_number_of_columns_are_not_unpacked_to_pairs(generator: torch.Generator) -> None:
    tiles = pack_tiled_weight(quantize_fp8(torch.randn(64, 6, generator=generator), block=(64, 3)))
    assert pack_narrow(tiles, torch.bfloat16) is None
    assert pack_narrow(tiles, torch.float32) is not None
