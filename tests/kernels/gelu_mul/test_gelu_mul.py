import pytest
import torch

from kernels.gelu_mul import gelu_mul, reference
from kernels.gelu_mul.cases import CASES
from kernels.testing import assert_matches


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_reference(case: tuple[int, int], dtype: torch.dtype, generator: torch.Generator) -> None:
    gate_up = torch.randn(case[0], 2 * case[1], generator=generator).to(dtype)
    expected = reference.gelu_mul(gate_up)
    assert_matches(gelu_mul(gate_up), expected)


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="gate_up"):
        gelu_mul(torch.zeros(2, 3))
