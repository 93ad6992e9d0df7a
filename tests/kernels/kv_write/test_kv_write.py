import pytest
import torch

from kernels.kv_write import reference, write_kv_
from kernels.kv_write.cases import CASES
from kernels.testing import nan_filled


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_reference(
    case: tuple[int, int, int, int, int], dtype: torch.dtype, generator: torch.Generator
) -> None:
    num_tokens, num_kv_heads, num_blocks, block_size, head_dim = case
    cache = nan_filled(2 * num_kv_heads, num_blocks, block_size, head_dim, dtype=dtype)
    # The tail of a fused projection, as the engine passes it.
    fused = torch.randn(num_tokens, 2 * num_kv_heads + 3, head_dim, generator=generator).to(dtype)
    slots = torch.randperm(num_blocks * block_size, generator=generator)[:num_tokens]
    expected = reference.write_kv(cache, fused[:, 3:], slots)
    write_kv_(cache, fused[:, 3:], slots)
    torch.testing.assert_close(cache, expected, atol=0, rtol=0, equal_nan=True)
    assert (~cache.isnan()).sum() == num_tokens * 2 * num_kv_heads * head_dim


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="write_kv"):
        write_kv_(torch.zeros(2, 3, 4, 5), torch.zeros(1, 2, 6), torch.zeros(1, dtype=torch.int64))
