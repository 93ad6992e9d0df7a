import pytest
import torch

from kernels.rotary import apply_rotary_, reference
from kernels.rotary.cases import CASES
from kernels.testing import assert_matches, nan_filled


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_reference(
    case: tuple[int, int, int], dtype: torch.dtype, generator: torch.Generator
) -> None:
    num_tokens, num_heads, head_dim = case
    angles = torch.rand(num_tokens, head_dim // 2, generator=generator) * 100
    cos, sin = angles.cos(), angles.sin()
    # A view into a wider matrix, as the engine passes it: what lies beside it must not be touched.
    fused = nan_filled(num_tokens, num_heads + 2, head_dim, dtype=dtype)
    heads = fused[:, :num_heads]
    heads.copy_(torch.randn(case, generator=generator))
    expected = reference.apply_rotary(heads, angles)
    apply_rotary_(heads, torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype))
    assert_matches(heads, expected)
    assert fused[:, num_heads:].isnan().all()


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="rotary"):
        apply_rotary_(torch.zeros(2, 1, 4), torch.zeros(3, 4), torch.zeros(3, 4))
