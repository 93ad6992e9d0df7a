import pytest
import torch
from torch import Tensor

from kernels.kv_write import GpuLayerCache, HeadNorms, LayerCache, reference, rotary_kv_write
from kernels.kv_write.cases import CASES, WriteCase
from kernels.testing import assert_matches, nan_filled


def inputs(case: WriteCase, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor, HeadNorms | None]:
    generator = torch.Generator().manual_seed(0)
    width = (case.num_heads + 2 * case.num_kv_heads) * case.head_dim
    # A view into a wider matrix is as good.
    qkv = torch.randn(case.num_tokens, width + 5, generator=generator).to(dtype)[:, :width]
    turns = torch.rand(50, case.head_dim // 2, generator=generator) * 100
    angles = torch.stack((turns.cos(), turns.sin()), dim=1)
    positions = torch.randint(0, 50, (case.num_tokens,), generator=generator)
    slots = torch.randperm(case.num_blocks * case.block_size, generator=generator)[: case.num_tokens]
    norms = None
    if case.has_norms:
        query, key = (torch.rand(case.head_dim, generator=generator) for _ in range(2))
        norms = HeadNorms(query, key, eps=0.1)
    return qkv, angles, positions, slots, norms


def expected_of(
    case: WriteCase, qkv: Tensor, angles: Tensor, positions: Tensor, slots: Tensor, norms: HeadNorms | None
) -> tuple[Tensor, Tensor]:
    """The queries and, as the GPU's cache lies, what is in the Slots; NaN where nothing is."""
    heads, dim = case.num_kv_heads, case.head_dim
    empty = LayerCache(
        nan_filled(case.num_blocks, heads, dim, case.block_size, dtype=torch.float32),
        nan_filled(case.num_blocks, heads, case.block_size, dim, dtype=torch.float32),
    )
    query, cache = reference.rotary_kv_write(qkv.float(), angles, positions, slots, empty, norms)
    return query.transpose(0, 1).flatten(1, 2), torch.cat((cache.keys.transpose(2, 3), cache.values), dim=1)


def run(
    case: WriteCase,
    dtype: torch.dtype,
    cache: GpuLayerCache,
    device: torch.device,
    slots: Tensor | None = None,
) -> Tensor:
    qkv, angles, positions, all_slots, norms = inputs(case, dtype)
    slots = all_slots if slots is None else slots
    if norms is not None:
        norms = HeadNorms(norms.query.to(device), norms.key.to(device), norms.eps)
    args = (x.to(device) for x in (qkv, angles, positions.int(), slots.int()))
    return rotary_kv_write(*args, cache, norms).cpu()


def empty_cache(case: WriteCase, kv_format: str, dtype: torch.dtype, device: torch.device) -> GpuLayerCache:
    # The fixture fills what is allocated.
    return GpuLayerCache.allocate(
        case.num_blocks,
        case.num_kv_heads,
        case.block_size,
        case.head_dim,
        dtype=dtype,
        kv_format=kv_format,
        device=device,
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_reference(case: WriteCase, dtype: torch.dtype, device: torch.device) -> None:
    cache = empty_cache(case, "plain", dtype, device)
    query, blocks = expected_of(case, *inputs(case, dtype))
    assert_matches(run(case, dtype, cache, device), query)
    actual = cache.blocks.cpu()
    assert torch.equal(actual.isnan(), blocks.isnan())
    assert_matches(actual.nan_to_num(), blocks.nan_to_num())


@pytest.mark.parametrize("kv_format", ["int8", "fp8"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_quantizes_each_head_of_a_token(case: WriteCase, kv_format: str, device: torch.device) -> None:
    cache = empty_cache(case, kv_format, torch.float32, device)
    query, blocks = expected_of(case, *inputs(case, torch.float32))
    assert_matches(run(case, torch.float32, cache, device), query)
    numbers, scales = cache.blocks.cpu(), cache.scales.cpu()
    is_written = ~blocks.isnan()
    assert torch.equal(~scales.isnan(), is_written.all(dim=-1))
    largest = blocks.abs().amax(dim=-1, keepdim=True)
    if kv_format == "int8":
        assert_matches(scales.nan_to_num(), (largest.squeeze(-1) / 127).nan_to_num())
        error = (numbers.float() * scales.unsqueeze(-1) - blocks).abs() / largest
        assert error[is_written].max() <= 0.5001 / 127
        assert (numbers[~is_written] == 127).all()  # what the fixture put there
    else:
        assert_matches(scales.nan_to_num(), (largest.squeeze(-1) / 448).nan_to_num())
        # The very bits of torch's own conversion.
        wanted = (blocks * (448 / largest)).to(torch.float8_e4m3fn).view(torch.uint8)
        is_same = (numbers == wanted)[is_written].float().mean()
        assert is_same > 0.99  # one of many lies on a tie, where the last bit of the scale decides
        decoded = numbers.view(torch.float8_e4m3fn).float() * scales.unsqueeze(-1)
        error = (decoded - blocks).abs()[is_written]
        bound = torch.maximum(blocks.abs() / 15.9, largest / 448 / 2**9)[is_written]
        assert (error <= bound).all()


@pytest.mark.parametrize("kv_format", ["int8", "fp8"])
def test_zeros_stay_zero(kv_format: str, device: torch.device) -> None:
    cache = GpuLayerCache.allocate(1, 1, 4, 6, dtype=torch.float32, kv_format=kv_format, device=device)
    one = torch.zeros(1, dtype=torch.int32, device=device)
    rotary_kv_write(torch.zeros(1, 18, device=device), torch.zeros(4, 2, 3, device=device), one, one, cache)
    assert (cache.blocks[0, :, 0] == 0).all()
    assert (cache.scales[0, :, 0] == 0).all()


def test_every_e4m3_number_and_what_lies_between_is_rounded_as_torch_does(device: torch.device) -> None:
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (codes[1:] + codes[:-1]) / 2
    values = torch.cat((codes, middles, middles * 1.0001, middles * 0.9999))
    values = torch.cat((values, -values, torch.full((2,), 448.0)))[:1024]
    values = torch.nn.functional.pad(values, (0, -len(values) % 8))
    # A head of 10: eight of the values, and 448 twice for a scale of one.
    heads = torch.cat((values.view(-1, 8), torch.full((len(values) // 8, 2), 448.0)), dim=1)
    count = len(heads)
    cache = GpuLayerCache.allocate(count, 1, 1, 10, dtype=torch.float32, kv_format="fp8", device=device)
    qkv = torch.cat((torch.zeros(count, 20), heads), dim=1).to(device)
    positions = torch.zeros(count, dtype=torch.int32, device=device)
    slots = torch.arange(count, dtype=torch.int32, device=device)
    rotary_kv_write(qkv, torch.zeros(1, 2, 5, device=device), positions, slots, cache)
    assert torch.equal(cache.blocks[:, 1, 0].cpu(), heads.to(torch.float8_e4m3fn).view(torch.uint8))


def test_rows_without_a_slot_are_not_written(device: torch.device) -> None:
    case = CASES[2]
    cache = empty_cache(case, "plain", torch.float32, device)
    slots = inputs(case, torch.float32)[3].clone()
    slots[3:] = -1
    run(case, torch.float32, cache, device, slots)
    assert (~cache.blocks.isnan()).sum() == 3 * 2 * case.num_kv_heads * case.head_dim


def test_arguments_are_checked(device: torch.device) -> None:
    cache = GpuLayerCache.allocate(3, 1, 4, 6, dtype=torch.float32, device=device)
    one = torch.zeros(1, dtype=torch.int32, device=device)
    for num_rows, width in ((1, 17), (2, 18), (1, 12)):
        with pytest.raises(ValueError, match="rotary_kv_write"):
            rotary_kv_write(
                torch.zeros(num_rows, width, device=device),
                torch.zeros(4, 2, 3, device=device),
                one,
                one,
                cache,
            )
    with pytest.raises(ValueError, match="must be one of plain, int8, fp8, not 'int3'"):
        GpuLayerCache.allocate(3, 1, 4, 6, dtype=torch.float32, kv_format="int3", device=device)
