import pytest
import torch

from kernels.silu_mul import reference
from kernels.silu_mul.cases import CASES
from kernels.silu_mul.gpu import silu_mul
from kernels.testing import assert_matches


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_reference(
    case: tuple[int, int], dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> None:
    gate_up = torch.randn(case[0], 2 * case[1] + 1, generator=generator).to(dtype)[:, 1:]
    assert_matches(silu_mul(gate_up.to(device)).cpu(), reference.silu_mul(gate_up))


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # numpy, in the interpreter
def test_large_gates_saturate(device: torch.device) -> None:
    gate_up = torch.tensor([[200.0, -200.0, 20.0, 3.0, 3.0, 3.0]], device=device)
    assert torch.equal(silu_mul(gate_up).cpu(), torch.tensor([[600.0, 0.0, 60.0]]))


def test_shapes_are_checked(device: torch.device) -> None:
    with pytest.raises(ValueError, match="gate_up"):
        silu_mul(torch.zeros(2, 3, device=device))
    with pytest.raises(ValueError, match="strides"):
        silu_mul(torch.zeros(4, 2, device=device).T)
    assert silu_mul(torch.zeros(0, 4, device=device)).shape == (0, 2)
