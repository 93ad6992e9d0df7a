"""Weights that stay narrow in memory, in chains."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.panel_argmax import panel_argmax
from kernels.product_chain import (
    UNPACKS,
    After,
    Chain,
    Link,
    NarrowPanels,
    PanelWeight,
    op,
    pack_narrow,
    pack_panels,
    run_chain,
)
from kernels.product_chain.factors import IS_WIDENED
from kernels.quantization import (
    Fp8Weight,
    Nf4Weight,
    QuantizedWeight,
    quantize_fp8,
    quantize_int4,
    quantize_int8,
)
from kernels.quantization.nf4 import BLOCK, LEVELS, NestedScales
from kernels.quantization.nibbles import unpack_nibbles
from kernels.testing import assert_matches
from kernels.weight_only_linear.cases import FORMATS

pytestmark = pytest.mark.skipif(not UNPACKS, reason="a processor that does not unpack levels")
in_every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
# The last panel is not whole.
OUT_FEATURES, IN_FEATURES = 150, 256


def narrow(weight: QuantizedWeight, dtype: torch.dtype, bias: Tensor | None = None) -> NarrowPanels:
    packed = pack_narrow(weight, bias, dtype=dtype)
    assert packed is not None
    return packed


def product(x: Tensor, weight: QuantizedWeight, dtype: torch.dtype) -> Tensor:
    """Return the product in float64 of what is multiplied: rows are rounded, and NF4 beside bfloat16."""
    values = weight.dequantize().double()
    if isinstance(weight, Nf4Weight):
        scales = weight.scales.dequantize() if isinstance(weight.scales, NestedScales) else weight.scales
        table = torch.tensor(LEVELS).to(torch.float32 if IS_WIDENED else dtype).double()
        values = table[unpack_nibbles(weight.packed).long()] * scales.double().repeat_interleave(BLOCK, 1)
    return x.to(dtype).double() @ values.T


@in_every_dtype
@pytest.mark.parametrize("num_rows", [1, 5, 9, 20])
@pytest.mark.parametrize("quantize", FORMATS.values(), ids=FORMATS)
def test_levels_are_multiplied_as_they_are(
    quantize: Callable[[Tensor], QuantizedWeight],
    num_rows: int,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> None:
    # Groups differ by powers of two, and lie off zero: a scale or zero point from next door is far off.
    steps = torch.randint(-2, 3, (OUT_FEATURES, IN_FEATURES // 32), generator=generator)
    steps = steps.repeat_interleave(32, dim=1)
    weight = torch.randn(OUT_FEATURES, IN_FEATURES, generator=generator) / IN_FEATURES**0.5
    quantized = quantize(weight * 2.0**steps + 0.01 * steps)
    bias = torch.randn(OUT_FEATURES, generator=generator)
    x = torch.randn(num_rows, IN_FEATURES, generator=generator)
    actual = run_chain(Chain([Link(narrow(quantized, dtype, bias))]), x)
    assert_matches(actual, product(x, quantized, dtype) + bias)


@in_every_dtype
def test_every_level_of_fp8_is_worth_what_it_is(dtype: torch.dtype) -> None:
    bits = torch.arange(256, dtype=torch.uint8).expand(2, 256)
    levels, scales = bits.view(torch.float8_e4m3fn), torch.tensor([[1.0], [0.5]])
    numbers = bits.where(levels.float().isfinite(), 0).view(torch.float8_e4m3fn)
    weight = Fp8Weight(numbers, scales, (1, 256))
    assert torch.equal(run_chain(Chain([Link(narrow(weight, dtype))]), torch.eye(256)).T, weight.dequantize())
    broken = narrow(Fp8Weight(levels, scales, (1, 256)), dtype)
    assert bool(run_chain(Chain([Link(broken)]), torch.ones(1, 256)).isnan().all())


@in_every_dtype
def test_odd_columns_are_not_taken(dtype: torch.dtype, generator: torch.Generator) -> None:
    weight = torch.randn(70, 77, generator=generator)
    assert pack_narrow(quantize_int8(weight), dtype=dtype) is None
    assert pack_narrow(quantize_fp8(weight[:, :6], block=(70, 3)), dtype=dtype) is None
    assert pack_narrow(quantize_fp8(weight[:, :6]), dtype=dtype) is not None


def test_a_bias_of_another_length_is_refused(generator: torch.Generator) -> None:
    weight = quantize_int8(torch.randn(70, 64, generator=generator))
    with pytest.raises(ValueError, match=r"pack_narrow: the bias is \(69,\), not \(70,\)"):
        pack_narrow(weight, torch.zeros(69), dtype=torch.float32)


@in_every_dtype
@pytest.mark.parametrize("has_zeros", [False, True])
def test_narrow_links_stand_beside_others_and_a_row_has_the_same_bits_in_any_batch(
    dtype: torch.dtype, has_zeros: bool, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, width, norm = 128, 320, torch.rand(128, generator=generator) + 0.5

    def weight(rows: int, columns: int) -> Tensor:
        found: Tensor = torch.randn(rows, columns, generator=generator) / columns**0.5
        return found

    four_bits = quantize_int4(weight(2 * width, hidden), is_symmetric=not has_zeros)
    float_down = weight(hidden, width)
    eight_bits = quantize_int8(float_down, is_symmetric=False) if has_zeros else quantize_fp8(float_down)
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

    chain = chain_of(narrow(four_bits, dtype), narrow(eight_bits, dtype))
    floats = chain_of(*(pack_panels(one.dequantize().to(dtype)) for one in (four_bits, eight_bits)))
    x, residual = (torch.randn(300, columns, generator=generator) for columns in (64, hidden))

    def run(chain: Chain, rows: slice, num_threads: int, split: tuple[bool, int]) -> Tensor:
        monkeypatch.setattr(op, "num_threads", lambda _: num_threads)
        monkeypatch.setattr(op, "_split", lambda *_: split)
        return run_chain(chain, x[rows].contiguous(), residual[rows].clone())

    expected = run(chain, slice(0, 300), 1, (False, 32))
    assert_matches(expected.to(dtype), run(floats, slice(0, 300), 1, (False, 32)).to(dtype))
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
