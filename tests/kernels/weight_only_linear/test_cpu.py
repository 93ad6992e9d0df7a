"""The product on a CPU, whose weight is packed in tiles."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels import device
from kernels.quantization import Fp8Weight, quantize_fp8, quantize_int4, quantize_int8
from kernels.testing import assert_matches
from kernels.weight_only_linear import (
    TiledWeight,
    pack_tiled_weight,
    reference,
    rows_of,
    weight_only_argmax,
    weight_only_linear,
)
from kernels.weight_only_linear.cases import CASE, FORMATS, LONG_CASE, ODD_CASES
from kernels.weight_only_linear.op import DENSE_TOKENS

ROOT = Path(__file__).parents[3]


def check(
    case: tuple[int, int, int],
    format_: str,
    dtype: torch.dtype,
    generator: torch.Generator,
    *,
    has_bias: bool = True,
) -> None:
    num_tokens, in_features, out_features = case
    # A view into a wider matrix, whose neighbours must not be read.
    wide = torch.full((num_tokens, in_features + 3), torch.nan, dtype=dtype)
    x = wide[:, :in_features].copy_(torch.randn(num_tokens, in_features, generator=generator))
    weight = torch.randn(out_features, in_features, generator=generator) / in_features**0.5 / 8
    # Groups differ by powers of two, and lie off zero: a scale or zero point from next door is far off.
    steps = torch.randint(-2, 3, (out_features, in_features // 32 + 1), generator=generator)
    steps = steps.repeat_interleave(32, dim=1)[:, :in_features]
    quantized = FORMATS[format_](weight * 2.0**steps + 0.01 * steps)
    bias = torch.randn(out_features, generator=generator) / 4 if has_bias else None
    actual = weight_only_linear(x, pack_tiled_weight(quantized, bias))
    assert actual.dtype == dtype
    assert_matches(actual, reference.weight_only_linear(x, quantized, bias))


@pytest.mark.parametrize("num_tokens", [CASE[0], 7])
@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_matches_reference(
    format_: str, num_tokens: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    check((num_tokens, *CASE[1:]), format_, dtype, generator)


@pytest.mark.parametrize("format_", ["int8-zero", "int4-128-zero", "nf4-nested", "fp8"])
def test_many_tokens_in_bfloat16_where_the_cpu_multiplies_it(
    format_: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "multiplies_bfloat16", lambda: True)
    check((DENSE_TOKENS, *LONG_CASE[1:]), format_, torch.bfloat16, generator)
    check((DENSE_TOKENS, 256, 150), format_, torch.bfloat16, generator, has_bias=False)


@pytest.mark.parametrize("format_", ["int8-zero", "int4-128-zero", "nf4-nested", "fp8"])
def test_more_rows_than_a_tile_match_reference(format_: str, generator: torch.Generator) -> None:
    check((*LONG_CASE[:2], 150), format_, torch.float32, generator, has_bias=False)


@pytest.mark.parametrize("format_", ["int8-zero", "fp8"])
@pytest.mark.parametrize("case", ODD_CASES, ids=str)
def test_odd_sizes_match_reference(
    case: tuple[int, int, int], format_: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    check(case, format_, dtype, generator)


def test_fp8_blocks_of_any_width_match_reference(generator: torch.Generator) -> None:
    weight = quantize_fp8(torch.randn(70, 100, generator=generator) / 80, block=(48, 41))
    x = torch.randn(6, 100, generator=generator)
    assert_matches(weight_only_linear(x, pack_tiled_weight(weight)), reference.weight_only_linear(x, weight))


def test_every_fp8_level_is_what_it_is_worth() -> None:
    levels = torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).view(16, 16)
    weight = Fp8Weight(levels, torch.ones(16, 16), (1, 1))
    actual = weight_only_linear(torch.eye(16), pack_tiled_weight(weight)).T
    expected = levels.float()
    is_sound = expected.isfinite().all(dim=1)
    assert torch.equal(actual[is_sound], expected[is_sound])
    assert is_sound.sum() == 14
    assert actual[~is_sound].isnan().all()


def many_rows(weight: TiledWeight, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(600, weight.in_features, generator=generator)


@pytest.mark.parametrize("format_", ["int4-64", "int8-zero", "fp8-block"])
def test_a_row_has_the_same_bits_in_any_batch(format_: str, generator: torch.Generator) -> None:
    weight = pack_tiled_weight(FORMATS[format_](torch.randn(200, 384, generator=generator)))
    x = many_rows(weight, generator)
    together = weight_only_linear(x, weight)
    for count in (1, 2, 3, 4, 5, 6, 7, 17, 64, 256, 257, 599):
        assert torch.equal(weight_only_linear(x[:count], weight), together[:count])
        assert torch.equal(weight_only_linear(x[-count:], weight), together[-count:])


def test_the_number_of_threads_changes_no_bits(generator: torch.Generator) -> None:
    weight = pack_tiled_weight(quantize_int4(torch.randn(330, 384, generator=generator)))
    x, before = many_rows(weight, generator), torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(weight_only_linear(x, weight))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_four_bits_stay_four_bits(generator: torch.Generator) -> None:
    weight = quantize_int4(torch.randn(128, 256, generator=generator))
    packed = pack_tiled_weight(weight)
    assert packed.num_bytes == weight.num_bytes + 16 * 4  # the table


@pytest.mark.slow
def test_levels_are_found_without_an_instruction_for_it() -> None:
    """As on a CPU without AVX512, for which this machine's Numba compiles in a process of its own."""
    environment = os.environ | {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+f16c"}
    tests = [f"{__file__}::test_every_format_matches_reference[f32-{one}-7]" for one in ("int4-64", "nf4")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_rows_of_an_int8_weight_have_their_scales(generator: torch.Generator) -> None:
    weight = quantize_int8(torch.randn(150, 34, generator=generator))
    rows = torch.tensor([0, 149, 63, 64, 63])
    assert torch.equal(rows_of(pack_tiled_weight(weight), rows), weight.dequantize()[rows])


@pytest.mark.parametrize("format_", ["int4-64", "int8-zero"])
@pytest.mark.parametrize("num_tokens", [1, 7, 300])
def test_the_largest_output_is_that_of_the_product(
    num_tokens: int, format_: str, generator: torch.Generator
) -> None:
    weight = pack_tiled_weight(
        FORMATS[format_](torch.randn(330, 192, generator=generator)), torch.randn(330, generator=generator)
    )
    x = torch.randn(num_tokens, 192, generator=generator)
    x[-1, 3] = torch.inf
    expected = weight_only_linear(x, weight)[:-1].argmax(dim=1)
    assert weight_only_argmax(x, weight).tolist() == [*expected.tolist(), -1]


def test_no_tokens_are_no_work() -> None:
    weight = pack_tiled_weight(quantize_int8(torch.ones(6, 4)))
    assert weight_only_linear(torch.zeros(0, 4), weight).shape == (0, 6)


def test_arguments_are_checked() -> None:
    weight = pack_tiled_weight(quantize_int8(torch.ones(6, 4)))
    with pytest.raises(ValueError, match="takes 4"):
        weight_only_linear(torch.zeros(2, 3), weight)
    with pytest.raises(ValueError, match="float16 on cpu, not float32 or bfloat16"):
        weight_only_linear(torch.zeros(2, 4, dtype=torch.float16), weight)
    with pytest.raises(ValueError, match="bias is"):
        pack_tiled_weight(quantize_int8(torch.ones(6, 4)), torch.zeros(5))
