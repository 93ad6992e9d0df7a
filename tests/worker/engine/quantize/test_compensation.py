import pytest
import torch

from kernels.quantization import quantize_fp8, quantize_int4
from worker.engine.quantize.compensation import quantize_fp8_compensated, quantize_int4_compensated


@pytest.fixture
def inputs() -> torch.Tensor:
    """Rows whose columns depend on each other and differ in size, as activations do."""
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(192, 192, generator=generator) / 192**0.5
    sizes = torch.logspace(-1, 1, 192)[torch.randperm(192, generator=generator)]
    return torch.randn(2000, 192, generator=generator) @ (mix + torch.eye(192) / 2) * sizes


@pytest.mark.parametrize("group_size", [32, 64])
def test_products_change_less_than_with_nearest_levels(inputs: torch.Tensor, group_size: int) -> None:
    weight = torch.randn(40, 192, generator=torch.Generator().manual_seed(1))
    moments = inputs.T @ inputs / len(inputs)
    plain = quantize_int4(weight, group_size=group_size)
    compensated = quantize_int4_compensated(weight, moments, group_size=group_size)
    assert compensated.shape == plain.shape
    assert compensated.group_size == group_size
    exact = inputs @ weight.T
    one, other = ((inputs @ found.dequantize().T - exact).square().mean() for found in (plain, compensated))
    assert other < 0.35 * one


def test_fp8_products_change_less_than_with_nearest_levels(inputs: torch.Tensor) -> None:
    weight = torch.randn(40, 192, generator=torch.Generator().manual_seed(1))
    found = quantize_fp8_compensated(weight, inputs.T @ inputs / len(inputs))
    plain = quantize_fp8(weight)
    assert torch.equal(found.scales, plain.scales)
    exact = inputs @ weight.T
    one, other = ((inputs @ way.dequantize().T - exact).square().mean() for way in (plain, found))
    assert other < 0.5 * one


def test_inputs_that_do_not_depend_on_each_other_need_no_compensation() -> None:
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    found = quantize_int4_compensated(weight, torch.eye(64) * 3)
    assert torch.equal(found.packed, quantize_int4(weight).packed)


def test_an_input_that_is_always_zero_does_no_harm() -> None:
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    moments = torch.eye(64)
    moments[5, 5] = 0
    assert torch.equal(quantize_int4_compensated(weight, moments).packed, quantize_int4(weight).packed)
    assert quantize_int4_compensated(weight, torch.zeros(64, 64)).dequantize().isfinite().all()


def test_moments_must_fit() -> None:
    with pytest.raises(ValueError, match="64 columns"):
        quantize_int4_compensated(torch.zeros(2, 64), torch.eye(63))
