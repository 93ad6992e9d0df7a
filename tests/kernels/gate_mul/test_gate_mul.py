import pytest
import torch

from kernels.gate_mul import gelu_mul, reference, silu_mul
from kernels.gate_mul.cases import CASES
from kernels.testing import assert_matches

OPS = {"silu": (silu_mul, reference.silu_mul), "gelu": (gelu_mul, reference.gelu_mul)}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_reference(
    case: tuple[int, int], name: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    actual, truth = OPS[name]
    # Wide enough that the cubic term tells.
    gate_up = 2 * torch.randn(case[0], 2 * case[1], generator=generator).to(dtype)
    assert_matches(actual(gate_up), truth(gate_up))


@pytest.mark.parametrize("name", OPS)
def test_shapes_are_checked(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}_mul: gate_up"):
        OPS[name][0](torch.zeros(2, 3))
