import pytest
import torch

from kernels.rms_norm import reference
from kernels.rms_norm.cases import CASES
from kernels.rms_norm.gpu import normalised
from kernels.testing import assert_matches


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_reference(
    case: tuple[int, int], dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> None:
    x = torch.randn(case[0], case[1] + 3, generator=generator).to(dtype)[:, : case[1]]
    residual, weight = torch.randn(case, generator=generator), torch.rand(case[1], generator=generator)
    assert_matches(
        normalised(x.to(device), None, weight.to(device), 1e-5, dtype).cpu(),
        reference.rms_norm(x, weight, 1e-5),
    )
    assert_matches(
        normalised(residual.to(device), None, weight.to(device), 0.5, dtype).cpu(),
        reference.rms_norm(residual, weight, 0.5),
    )
    expected, total = reference.add_rms_norm(x, residual, weight, 1e-5)
    summed = residual.to(device, copy=True)
    assert_matches(normalised(x.to(device), summed, weight.to(device), 1e-5, dtype).cpu(), expected)
    assert_matches(summed.cpu(), total)


def test_shapes_are_checked(device: torch.device) -> None:
    x = torch.zeros(2, 3, device=device)
    with pytest.raises(ValueError, match=r"weight \(4,\)"):
        normalised(x, None, torch.zeros(4, device=device), 1e-5, x.dtype)
    with pytest.raises(ValueError, match=r"residual \(1, 3\)"):
        normalised(x, x[:1], x[0], 1e-5, x.dtype)
    assert normalised(x[:0], None, x[0], 1e-5, x.dtype).shape == (0, 3)
