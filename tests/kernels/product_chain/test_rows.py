import pytest
import torch

from kernels.product_chain import pack_panels, rows_of
from kernels.quantization import Int8Weight
from tests.kernels.product_chain.formats import weight_in


@pytest.mark.parametrize("format_", [torch.int8, torch.bfloat16, torch.float32], ids=["int8", "bf16", "f32"])
@pytest.mark.parametrize("shape", [(200, 64), (64, 7), (1, 4), (130, 33)], ids=str)
def test_rows_are_those_that_were_packed(
    format_: torch.dtype, shape: tuple[int, int], generator: torch.Generator
) -> None:
    weight = weight_in(format_, torch.randn(shape, generator=generator))
    rows = torch.randint(shape[0], (40,), generator=generator)
    whole = weight.dequantize() if isinstance(weight, Int8Weight) else weight.float()
    bias = torch.randn(shape[0], generator=generator)
    torch.testing.assert_close(rows_of(pack_panels(weight, bias), rows), whole[rows], rtol=1e-6, atol=0)


@pytest.mark.parametrize("format_", [torch.int8, torch.bfloat16, torch.float32], ids=["int8", "bf16", "f32"])
def test_arguments_are_checked(format_: torch.dtype, generator: torch.Generator) -> None:
    weight = pack_panels(weight_in(format_, torch.randn(70, 8, generator=generator)))
    for row in (-1, 70):
        with pytest.raises(ValueError, match="from 0 to 69"):
            rows_of(weight, torch.tensor([3, row]))
    for rows in (torch.tensor([1], dtype=torch.int32), torch.arange(4)[::2]):
        with pytest.raises(ValueError, match="rows_of"):
            rows_of(weight, rows)
    assert rows_of(weight, torch.empty(0, dtype=torch.int64)).shape == (0, 8)
