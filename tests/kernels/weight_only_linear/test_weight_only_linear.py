import pytest
import torch

from kernels.crossover import Regime
from kernels.quantization import quantize_fp8, quantize_int8
from kernels.testing import assert_matches
from kernels.weight_only_linear import gpu, pack_linear_weight, reference, weight_only_linear
from kernels.weight_only_linear.cases import CASE, FORMATS, LONG_CASE, ODD_CASES

REGIMES = {
    "gemv": Regime("gemv", None, block_n=4, block_k=128),
    "tile": Regime("tile", None, block_m=16, block_n=16, block_k=64),
    "split": Regime("tile", None, block_m=16, block_n=32, block_k=32, num_programs=64),
    "dense": Regime("dense", None),
}


@pytest.fixture
def dtype(device: torch.device) -> torch.dtype:
    """Triton's interpreter computes in bfloat16 as if its bits were integers."""
    return torch.bfloat16 if device.type == "cuda" else torch.float16


def check(
    case: tuple[int, int, int],
    format_: str,
    regime: Regime,
    dtype: torch.dtype,
    generator: torch.Generator,
    device: torch.device,
    *,
    is_gated: bool = False,
) -> None:
    num_tokens, in_features, out_features = case
    # A view into a wider matrix, whose neighbours must not be read.
    wide = torch.full((num_tokens, in_features + 3), torch.nan, dtype=dtype)
    x = wide[:, :in_features].copy_(torch.randn(num_tokens, in_features, generator=generator))
    weight = torch.randn(out_features, in_features, generator=generator) / in_features**0.5 / 8
    # Groups differ by powers of two, and lie off zero: a scale or zero point from next door is far off.
    steps = torch.randint(-2, 3, (out_features, in_features // 32 + 1), generator=generator)
    weight *= 2.0 ** steps.repeat_interleave(32, dim=1)[:, :in_features]
    bias = torch.randn(out_features, generator=generator) / 4
    quantized = FORMATS[format_](weight + 0.01 * steps.repeat_interleave(32, dim=1)[:, :in_features])
    expected = reference.weight_only_linear(x, quantized, bias, is_gated=is_gated)
    packed = pack_linear_weight(quantized, bias, is_gated=is_gated).to(device)
    actual = gpu.run(wide.to(device)[:, :in_features], packed, regime)
    assert actual.dtype == dtype
    assert_matches(actual.cpu(), expected)


@pytest.mark.parametrize("is_gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_matches_reference(
    format_: str,
    regime: str,
    is_gated: bool,
    dtype: torch.dtype,
    generator: torch.Generator,
    device: torch.device,
) -> None:
    check(CASE, format_, REGIMES[regime], dtype, generator, device, is_gated=is_gated)


@pytest.mark.parametrize("regime", ["tile", "split"])
@pytest.mark.parametrize("format_", ["int8-zero", "int4-128-zero", "nf4-nested"])
def test_long_sums_match_reference(
    format_: str, regime: str, dtype: torch.dtype, generator: torch.Generator, device: torch.device
) -> None:
    check(LONG_CASE, format_, REGIMES[regime], dtype, generator, device)


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("format_", ["int8-zero", "fp8"])
@pytest.mark.parametrize("case", ODD_CASES, ids=str)
def test_odd_sizes_match_reference(
    case: tuple[int, int, int],
    format_: str,
    regime: str,
    dtype: torch.dtype,
    generator: torch.Generator,
    device: torch.device,
) -> None:
    check(case, format_, REGIMES[regime], dtype, generator, device)


def test_a_split_may_end_within_a_block(
    dtype: torch.dtype, generator: torch.Generator, device: torch.device
) -> None:
    regime = Regime("tile", None, block_m=16, block_n=32, block_k=256, num_programs=2)
    assert regime.num_splits(2, 2176) == 2
    check((1, 2176, 2), "int8", regime, dtype, generator, device)


def test_the_split_of_the_sums_does_not_depend_on_the_tokens(
    dtype: torch.dtype, generator: torch.Generator, device: torch.device
) -> None:
    x = torch.randn(19, 640, generator=generator).to(device, dtype)
    packed = pack_linear_weight(FORMATS["int4-64"](torch.randn(38, 640, generator=generator)))
    weight = packed.to(device)
    together = gpu.run(x, weight, REGIMES["split"])
    for count in (1, 16, 17):
        assert torch.equal(gpu.run(x[:count], weight, REGIMES["split"]), together[:count])


def test_no_tokens_are_no_work(device: torch.device) -> None:
    weight = pack_linear_weight(quantize_int8(torch.ones(6, 4))).to(device)
    assert gpu.run(torch.zeros(0, 4, dtype=torch.float16, device=device), weight, REGIMES["tile"]).shape == (
        0,
        6,
    )


def test_arguments_are_checked() -> None:
    weight = pack_linear_weight(quantize_int8(torch.ones(6, 4)))
    with pytest.raises(ValueError, match="takes 4"):
        weight_only_linear(torch.zeros(2, 3, dtype=torch.float16), weight)
    with pytest.raises(ValueError, match="on cpu"):
        weight_only_linear(torch.zeros(2, 4, dtype=torch.float16), weight)
    with pytest.raises(ValueError, match="bias is"):
        pack_linear_weight(quantize_int8(torch.ones(6, 4)), torch.zeros(5))
    with pytest.raises(ValueError, match="5 rows"):
        pack_linear_weight(quantize_int8(torch.ones(5, 4)), is_gated=True)
    with pytest.raises(ValueError, match="blocks of 48"):
        pack_linear_weight(quantize_fp8(torch.ones(5, 96), block=(1, 48)))
