import pytest
import torch

from kernels.kv_write import HeadNorms, LayerCache, reference, rotary_kv_write
from kernels.kv_write.cases import CASES, WriteCase
from kernels.testing import assert_matches, nan_filled


@pytest.mark.parametrize(
    ("dtype", "cache_dtype"),
    [
        (torch.float32, torch.float32),
        (torch.float32, torch.bfloat16),  # dtype int8
        (torch.bfloat16, torch.bfloat16),
    ],
    ids=str,
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_reference(
    case: WriteCase, cache_dtype: torch.dtype, dtype: torch.dtype, generator: torch.Generator
) -> None:
    width = (case.num_heads + 2 * case.num_kv_heads) * case.head_dim
    qkv = torch.randn(case.num_tokens, width, generator=generator).to(dtype)
    turns = torch.rand(50, case.head_dim // 2, generator=generator) * 100
    angles = torch.stack((turns.cos(), turns.sin()), dim=1)
    positions = torch.randint(0, 50, (case.num_tokens,), generator=generator)
    slots = torch.randperm(case.num_blocks * case.block_size, generator=generator)[: case.num_tokens]
    heads, dim = case.num_kv_heads, case.head_dim
    cache = LayerCache(
        nan_filled(case.num_blocks, heads, dim, case.block_size, dtype=cache_dtype),
        nan_filled(case.num_blocks, heads, case.block_size, dim, dtype=cache_dtype),
    )
    norms = None
    if case.has_norms:
        norms = HeadNorms(*(torch.rand(dim, generator=generator) for _ in range(2)), eps=0.1)
    query, expected = reference.rotary_kv_write(qkv, angles, positions, slots, cache, norms)
    assert_matches(rotary_kv_write(qkv, angles, positions, slots, cache, norms), query)
    for actual, wanted in ((cache.keys, expected.keys), (cache.values, expected.values)):
        assert torch.equal(actual.isnan(), wanted.isnan())
        assert_matches(actual.nan_to_num(), wanted.nan_to_num())
        assert (~actual.isnan()).sum() == case.num_tokens * heads * dim
    assert torch.equal(cache.values.nan_to_num(), expected.values.nan_to_num())  # rounded as torch does


def test_a_row_has_the_same_bits_where_the_scratch_lies_right_behind_a_norm(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    dim, empty = 16, torch.empty
    qkv, angles = (torch.randn(9, *shape, generator=generator) for shape in ((3 * dim,), (2, dim // 2)))
    memory = torch.rand(1000, generator=generator)
    norms = HeadNorms(memory[:dim], torch.rand(dim, generator=generator), eps=0.1)

    def write(start: int) -> torch.Tensor:
        cache = LayerCache.allocate(1, 1, 16, dim, torch.float32)
        # The scratch is the one tensor with one axis.
        monkeypatch.setattr(
            torch, "empty", lambda *given: memory[start:][: given[0]] if len(given) == 1 else empty(*given)
        )
        return rotary_kv_write(qkv, angles, torch.arange(9), torch.arange(9), cache, norms)

    assert torch.equal(write(dim), write(500))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_int8_is_the_plain_write_rounded(
    case: WriteCase, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """Each head of a token by its own scale, its largest magnitude as 127."""
    heads, dim, size = case.num_kv_heads, case.head_dim, case.block_size
    qkv = torch.randn(case.num_tokens, (case.num_heads + 2 * heads) * dim, generator=generator).to(dtype)
    qkv[-1] = 0  # has no scale of its own
    turns = torch.rand(50, dim // 2, generator=generator) * 100
    angles = torch.stack((turns.cos(), turns.sin()), dim=1)
    positions = torch.randint(0, 50, (case.num_tokens,), generator=generator)
    slots = torch.randperm(case.num_blocks * size, generator=generator)[: case.num_tokens]
    norms = None
    if case.has_norms:
        norms = HeadNorms(*(torch.rand(dim, generator=generator) for _ in range(2)), eps=0.1)
    plain = LayerCache.allocate(case.num_blocks, heads, size, dim, torch.float32)
    cache = LayerCache.allocate(case.num_blocks, heads, size, dim, torch.int8)
    assert cache.scales is not None
    query, expected = reference.rotary_kv_write(qkv, angles, positions, slots, plain, norms)
    assert_matches(rotary_kv_write(qkv, angles, positions, slots, cache, norms), query)
    levels = (cache.keys.float(), cache.values.float())
    wanted = (expected.keys, expected.values)
    for level, scale, value, axis in zip(levels, cache.scales, wanted, (2, 3), strict=True):
        largest = value.abs().amax(dim=axis)
        assert_matches(scale, largest / 127)
        rounded = (level * scale.unsqueeze(axis) - value).abs()
        assert (rounded <= (0.501 * scale + 1e-6).unsqueeze(axis)).all()
        assert torch.equal(level.abs().amax(dim=axis), torch.where(largest > 0, 127.0, 0.0))


def test_a_fresh_cache_is_zero() -> None:
    cache = LayerCache.allocate(3, 2, 4, 6, torch.bfloat16)
    assert cache.keys.shape == (3, 2, 6, 4)
    assert cache.values.shape == (3, 2, 4, 6)
    assert not cache.keys.any()
    assert not cache.values.any()


def test_arguments_are_checked() -> None:
    cache = LayerCache.allocate(3, 1, 4, 6, torch.float32)
    one = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="rotary_kv_write"):
        rotary_kv_write(torch.zeros(1, 17), torch.zeros(4, 2, 3), one, one, cache)
    with pytest.raises(ValueError, match="rotary_kv_write"):
        rotary_kv_write(torch.zeros(2, 18), torch.zeros(4, 2, 3), one, one, cache)
    narrow = torch.zeros(1, 18, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"cannot write torch\.bfloat16 into a cache of torch\.float32"):
        rotary_kv_write(narrow, torch.zeros(4, 2, 3), one, one, cache)
