import pytest
import torch

from kernels.gate_mul import reference
from kernels.gate_mul.activations import Activation
from kernels.gate_mul.cases import CASES
from kernels.gate_mul.gpu import gated
from kernels.testing import assert_matches

TRUTHS = {Activation.SILU: reference.silu_mul, Activation.GELU: reference.gelu_mul}


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_reference(
    case: tuple[int, int],
    activation: Activation,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
) -> None:
    wide = 2 * torch.randn(case[0], 2 * case[1] + 1, generator=generator).to(dtype)
    gate_up = wide[:, 1:]  # rows that are not dense
    assert_matches(gated(gate_up.to(device), activation).cpu(), TRUTHS[activation](gate_up))


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # numpy, in the interpreter
@pytest.mark.parametrize("activation", Activation)
def test_large_gates_saturate(activation: Activation, device: torch.device) -> None:
    gate_up = torch.tensor([[200.0, -200.0, 20.0, 3.0, 3.0, 3.0]], device=device)
    assert torch.equal(gated(gate_up, activation).cpu(), torch.tensor([[600.0, 0.0, 60.0]]))


@pytest.mark.parametrize("activation", Activation)
def test_shapes_are_checked(activation: Activation, device: torch.device) -> None:
    with pytest.raises(ValueError, match=f"{activation.value}_mul: gate_up"):
        gated(torch.zeros(2, 3, device=device), activation)
    with pytest.raises(ValueError, match="strides"):
        gated(torch.zeros(4, 2, device=device).T, activation)
    assert gated(torch.zeros(0, 4, device=device), activation).shape == (0, 2)
