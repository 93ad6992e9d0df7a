import pytest
import torch

from kernels.silu_mul import reference, silu_mul
from kernels.silu_mul.cases import CASES
from kernels.testing import assert_matches


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_reference(case: tuple[int, int], dtype: torch.dtype, generator: torch.Generator) -> None:
    gate_up = torch.randn(case[0], 2 * case[1], generator=generator).to(dtype)
    expected = reference.silu_mul(gate_up)
    assert_matches(silu_mul(gate_up), expected)


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="gate_up"):
        silu_mul(torch.zeros(2, 3))
