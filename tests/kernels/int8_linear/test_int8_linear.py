import os
import platform
import subprocess
import sys

import pytest
import torch

from kernels.int8_linear import int8_linear, is_exact, pack_int8_weight, reference
from kernels.int8_linear.cases import CASES
from kernels.quantization import quantize_int8
from kernels.testing import assert_matches

needs_exact_sums = pytest.mark.skipif(not is_exact(), reason="sums saturate on this processor")


@needs_exact_sums
@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "plain"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_reference(
    case: tuple[int, int, int], has_bias: bool, dtype: torch.dtype, generator: torch.Generator
) -> None:
    num_tokens, in_features, out_features = case
    x = torch.randn(num_tokens, in_features, generator=generator).to(dtype)
    weight = (torch.randn(out_features, in_features, generator=generator) / in_features**0.5).to(dtype)
    bias = torch.randn(out_features, generator=generator) if has_bias else None
    before = x.clone()
    actual = int8_linear(x, pack_int8_weight(quantize_int8(weight)), bias, dtype)
    assert actual.dtype == dtype
    assert torch.equal(x, before)
    assert_matches(actual, reference.int8_linear(x, weight, bias))


@needs_exact_sums
def test_is_within_its_steps_of_the_unquantized_product(generator: torch.Generator) -> None:
    x = torch.randn(16, 96, generator=generator)
    x[3] *= 1000  # an outlier token costs the others nothing
    x[5] = 0
    weight = torch.randn(40, 96, generator=generator)
    actual = int8_linear(x, pack_int8_weight(quantize_int8(weight)), None, torch.float32)
    half_x = x.abs().amax(dim=1, keepdim=True) / 254
    half_w = weight.abs().amax(dim=1, keepdim=True) / 254
    bound = (
        half_x * weight.abs().sum(dim=1)
        + half_w.T * x.abs().sum(dim=1, keepdim=True)
        + 96 * half_x * half_w.T
    )
    assert ((actual - x @ weight.T).abs() <= bound * 1.0001).all()
    assert (actual[5] == 0).all()


@needs_exact_sums
def test_the_largest_value_of_a_token_is_not_rounded(generator: torch.Generator) -> None:
    x = torch.diag(torch.randn(64, generator=generator))  # a token each, with one value
    weight = quantize_int8(torch.randn(40, 64, generator=generator))
    actual = int8_linear(x, pack_int8_weight(weight), None, torch.float32)
    torch.testing.assert_close(actual, x @ weight.dequantize().T, rtol=1e-6, atol=0)


def test_a_row_has_the_same_bits_in_any_batch(generator: torch.Generator) -> None:
    x = torch.randn(300, 384, generator=generator).bfloat16()
    weight = pack_int8_weight(quantize_int8(torch.randn(640, 384, generator=generator)))
    together = int8_linear(x, weight, None, torch.float32)
    for count in (1, 2, 3, 17, 64, 299):
        assert torch.equal(int8_linear(x[:count], weight, None, torch.float32), together[:count])
        assert torch.equal(int8_linear(x[-count:], weight, None, torch.float32), together[-count:])


@pytest.mark.skipif(platform.machine() != "x86_64", reason="oneDNN's sums saturate on x86 only")
def test_sums_that_saturate_are_noticed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from kernels.int8_linear import is_exact; raise SystemExit(is_exact())"],
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"},
        check=False,
    )
    assert done.returncode == 0


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="zero points"):
        pack_int8_weight(quantize_int8(torch.ones(5, 4), is_symmetric=False))
    packed = pack_int8_weight(quantize_int8(torch.ones(5, 4)))
    with pytest.raises(ValueError, match="takes 4"):
        int8_linear(torch.zeros(2, 3), packed, None, torch.float32)
