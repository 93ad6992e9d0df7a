import pytest
import torch

from kernels.rms_norm import add_rms_norm, reference, rms_norm
from kernels.rms_norm.cases import CASES
from kernels.testing import assert_matches


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_reference(case: tuple[int, int], dtype: torch.dtype, generator: torch.Generator) -> None:
    x = torch.randn(case, generator=generator).to(dtype)
    residual = torch.randn(case, generator=generator)
    weight = torch.rand(case[1], generator=generator)
    assert_matches(rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
    assert_matches(rms_norm(residual, weight, 0.5, dtype), reference.rms_norm(residual, weight, 0.5))
    expected, total = reference.add_rms_norm(x, residual, weight, 1e-5)
    assert_matches(add_rms_norm(x, residual, weight, 1e-5), expected)
    assert_matches(residual, total)


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="weight"):
        rms_norm(torch.zeros(2, 3), torch.zeros(4), 1e-5)
    with pytest.raises(ValueError, match="residual"):
        add_rms_norm(torch.zeros(2, 3), torch.zeros(1, 3), torch.zeros(3), 1e-5)
