import pytest
import torch

from kernels.quantize_tokens import gpu, quantize_tokens, reference
from kernels.quantize_tokens.cases import CASES

LEVELS = [torch.int8, torch.float8_e4m3fn]


@pytest.mark.parametrize("levels_dtype", LEVELS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernel_matches_reference(
    case: tuple[int, int],
    levels_dtype: torch.dtype,
    dtype: torch.dtype,
    generator: torch.Generator,
    device: torch.device,
) -> None:
    num_tokens, width = case
    # A view into a wider matrix: its neighbours are no part of any maximum.
    wide = torch.randn(num_tokens, width + 3, generator=generator).to(dtype)
    wide[:, width:] = 1e4
    x = wide[:, :width]
    x[-1] *= 1000  # an outlier token costs the others nothing
    levels, scales = gpu.quantize_tokens(x.to(device), levels_dtype)
    _, expected_scales = reference.quantize_tokens(x, levels_dtype)
    torch.testing.assert_close(scales.cpu(), expected_scales, rtol=1e-6, atol=0)
    assert levels.dtype == levels_dtype
    # The nearest level; which of two at the same distance is nobody's concern.
    value = x.float() / expected_scales
    mantissa, exponent = torch.frexp(value)
    is_int = levels_dtype == torch.int8
    half = torch.full_like(value, 0.5) if is_int else 2.0 ** (exponent.clamp(min=-5) - 5)
    is_near = (levels.cpu().float() - value).abs() <= half * 1.0001
    if device.type == "cpu" and not is_int:
        # Where rounding goes up to a power of two, the interpreter's conversion to fp8 forgets the exponent.
        is_near |= mantissa.abs() > 0.96
    assert is_near.all()


@pytest.mark.parametrize("levels_dtype", LEVELS, ids=str)
def test_a_token_comes_back_within_half_a_step(levels_dtype: torch.dtype, generator: torch.Generator) -> None:
    x = torch.randn(9, 300, generator=generator) * torch.logspace(-3, 3, 9).unsqueeze(1)
    x[4] = 0
    levels, scales = quantize_tokens(x, levels_dtype)
    half = scales / 2 if levels_dtype == torch.int8 else x.abs() / 16 + scales * 2**-10
    assert ((levels.float() * scales - x).abs() <= half * 1.0001).all()
    assert not levels[4].float().any()


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast")  # its level means nothing
def test_nan_is_not_lost(device: torch.device) -> None:
    x = torch.ones(3, 40)
    x[1, 7] = float("nan")
    for scales in (gpu.quantize_tokens(x.to(device), torch.int8)[1], quantize_tokens(x)[1]):
        assert scales.isnan().flatten().tolist() == [False, True, False]


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="dtype"):
        quantize_tokens(torch.zeros(1, 1), torch.int16)
    with pytest.raises(ValueError, match="strides"):
        quantize_tokens(torch.zeros(3, 4).T)
    with pytest.raises(ValueError, match="at most"):
        gpu.quantize_tokens(torch.zeros(1, 40000), torch.int8)
