import pytest
import torch

from worker.engine.models.layers.linear import Linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("has_bias", [True, False])
def test_every_dtype_is_multiplied_whether_or_not_onednn_can(dtype: torch.dtype, has_bias: bool) -> None:
    torch.manual_seed(1)
    x, weight, bias = (torch.randn(shape).to(dtype) for shape in ((5, 24), (7, 24), (7,)))
    out = Linear(weight, bias if has_bias else None)(x)
    expected = x.double() @ weight.double().T + (bias.double() if has_bias else 0)
    assert out.dtype == dtype
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
