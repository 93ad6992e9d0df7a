import pytest
import torch

from kernels.crossover import Regime
from kernels.quantization import quantize_fp8, quantize_int8
from kernels.quantize_tokens import quantize_tokens
from kernels.scaled_linear import gpu, pack_scaled_weight, reference, scaled_linear
from kernels.scaled_linear.cases import CASES
from kernels.testing import assert_matches

REGIMES = {
    "swapped": Regime("tile", None, block_m=16, block_n=16, block_k=64),
    "split": Regime("tile", None, block_m=32, block_n=32, block_k=32, num_programs=64),
    "tile": Regime("tile", None, block_m=64, block_n=32, block_k=128),
}
FORMATS = {"int8": quantize_int8, "fp8": quantize_fp8}


@pytest.mark.parametrize("is_gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_reference(
    case: tuple[int, int, int],
    format_: str,
    regime: str,
    is_gated: bool,
    generator: torch.Generator,
    device: torch.device,
) -> None:
    num_tokens, in_features, out_features = case
    x = torch.randn(num_tokens, in_features, generator=generator)
    x[-1] *= 10
    weight = torch.randn(out_features, in_features, generator=generator) / in_features**0.5 / 4
    weight *= 2.0 ** torch.randint(-3, 3, (out_features, 1), generator=generator)  # rows differ
    bias = torch.randn(out_features, generator=generator) / 4
    quantized = FORMATS[format_](weight)
    levels, scales = quantize_tokens(x, quantized.levels.dtype)
    expected = reference.scaled_linear(levels, scales, quantized, bias, is_gated=is_gated)
    packed = pack_scaled_weight(quantized, bias, is_gated=is_gated).to(device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float16
    actual = gpu.run(levels.to(device), scales.to(device), packed, dtype, REGIMES[regime])
    assert actual.dtype == dtype
    assert_matches(actual.cpu(), expected)


def test_int8_sums_are_exact_in_any_regime(generator: torch.Generator, device: torch.device) -> None:
    levels = torch.randint(-127, 128, (5, 640), dtype=torch.int8, generator=generator).to(device)
    weight = pack_scaled_weight(quantize_int8(torch.randn(38, 640, generator=generator))).to(device)
    scales = torch.rand(5, 1, generator=generator).to(device)
    one, *others = (gpu.run(levels, scales, weight, torch.float32, regime) for regime in REGIMES.values())
    assert all(torch.equal(other, one) for other in others)


def test_tiles_of_tokens_share_a_weight_in_groups_that_need_not_be_full(
    generator: torch.Generator, device: torch.device
) -> None:
    levels = torch.randint(-127, 128, (310, 64), dtype=torch.int8, generator=generator).to(device)
    quantized = quantize_int8(torch.randn(50, 64, generator=generator) / 100)
    scales = torch.rand(310, 1, generator=generator).to(device) / 100
    weight = pack_scaled_weight(quantized).to(device)
    found = gpu.run(levels, scales, weight, torch.float32, REGIMES["swapped"])  # 20 tiles
    assert_matches(found.cpu(), reference.scaled_linear(levels.cpu(), scales.cpu(), quantized))


def test_a_split_may_end_within_a_block(generator: torch.Generator, device: torch.device) -> None:
    regime = Regime("tile", None, block_m=16, block_n=32, block_k=256, num_programs=2)
    assert regime.num_splits(2, 2176) == 2
    levels = torch.randint(-127, 128, (1, 2176), dtype=torch.int8, generator=generator).to(device)
    weight = pack_scaled_weight(quantize_int8(torch.randn(2, 2176, generator=generator))).to(device)
    scales = torch.ones(1, 1, device=device)
    whole = gpu.run(levels, scales, weight, torch.float32, REGIMES["swapped"])
    assert torch.equal(gpu.run(levels, scales, weight, torch.float32, regime), whole)


def test_a_scale_for_the_whole_weight_serves_every_row(generator: torch.Generator) -> None:
    weight = quantize_fp8(torch.randn(5, 8, generator=generator), block=(5, 8))
    assert torch.equal(pack_scaled_weight(weight).scales, weight.scales.flatten().expand(5))


def test_no_tokens_are_no_work(device: torch.device) -> None:
    weight = pack_scaled_weight(quantize_int8(torch.ones(6, 4))).to(device)
    none = torch.zeros(0, 4, dtype=torch.int8, device=device)
    out = gpu.run(none, torch.zeros(0, 1, device=device), weight, torch.float16, REGIMES["tile"])
    assert out.shape == (0, 6)


def test_arguments_are_checked() -> None:
    weight = pack_scaled_weight(quantize_int8(torch.ones(6, 4)))
    with pytest.raises(ValueError, match="takes 4"):
        scaled_linear(torch.zeros(2, 3, dtype=torch.float16), weight)
    with pytest.raises(ValueError, match="on cpu"):
        scaled_linear(torch.zeros(2, 4, dtype=torch.float16), weight)
    with pytest.raises(ValueError, match="bias is"):
        pack_scaled_weight(quantize_int8(torch.ones(6, 4)), torch.zeros(5))
    with pytest.raises(ValueError, match="5 rows"):
        pack_scaled_weight(quantize_int8(torch.ones(5, 4)), is_gated=True)
    with pytest.raises(ValueError, match="zero points"):
        pack_scaled_weight(quantize_int8(torch.ones(5, 4), is_symmetric=False))
    with pytest.raises(ValueError, match="a scale for 2 columns"):
        pack_scaled_weight(quantize_fp8(torch.ones(5, 4), block=(1, 2)))
