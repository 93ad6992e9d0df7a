import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.kv_write import GpuLayerCache, LayerCache
from kernels.paged_attention import GpuAttentionPlan, Tiling, choose_tiling, gpu, reference
from kernels.paged_attention.cases import GPU_CASES, AttentionCase
from kernels.paged_attention.gpu import paged_attention, plan_attention
from kernels.testing import assert_matches

# Small enough that the cases have several of everything.
TILING = Tiling(
    has_prompts=True,
    split_size=16,
    block_tile_m=32,
    block_n=16,
    num_warps=4,
    num_stages=2,
    programs_per_processor=3,
)
FORMATS = [
    ("plain", torch.float32),
    ("plain", torch.float16),
    ("int8", torch.float32),
    ("fp8", torch.float32),
    ("int8", torch.float16),
    ("fp8", torch.float16),
]
if torch.cuda.is_available():  # the interpreter's products of two bfloat16 are wrong (Triton 3.9)
    FORMATS += [(kv_format, torch.bfloat16) for kv_format in ("plain", "int8", "fp8")]


def random_cache(case: AttentionCase, num_blocks: int, kv_format: str, dtype: torch.dtype) -> GpuLayerCache:
    rows = (num_blocks, 2 * case.num_kv_heads, case.block_size)
    if kv_format == "plain":
        return GpuLayerCache(torch.randn(*rows, case.head_dim).to(dtype), None)
    scales = torch.rand(rows) + 0.5
    if kv_format == "int8":
        return GpuLayerCache(torch.randint(-127, 128, (*rows, case.head_dim), dtype=torch.int8), scales / 64)
    numbers = torch.randn(*rows, case.head_dim) * torch.exp(torch.randn(*rows, 1))
    return GpuLayerCache(numbers.to(torch.float8_e4m3fn).view(torch.uint8), scales)


def as_layer_cache(cache: GpuLayerCache) -> LayerCache:
    """The same numbers in float32, as the reference takes them."""
    numbers = cache.blocks
    if cache.kv_format == "fp8":
        numbers = numbers.view(torch.float8_e4m3fn)
    numbers = numbers.float()
    if cache.scales is not None:
        numbers = numbers * cache.scales.unsqueeze(-1)
    keys, values = numbers.chunk(2, dim=1)
    return LayerCache(keys.transpose(2, 3).contiguous().cpu(), values.contiguous().cpu())


def make_plan(
    case: AttentionCase,
    cache: GpuLayerCache,
    tables: Tensor,
    tiling: Tiling,
    device: torch.device,
    **bounds: int,
) -> GpuAttentionPlan:
    query_lens, context_lens = (torch.tensor([pair[i] for pair in case.lens]) for i in (0, 1))
    starts = torch.cat((torch.zeros(1, dtype=torch.int64), query_lens.cumsum(0)))
    bounds = {"max_query_len": int(query_lens.max()), "max_context_len": int(context_lens.max())} | bounds
    return plan_attention(
        starts.int().to(device),
        context_lens.int().to(device),
        tables.int().to(device),
        cache,
        tiling,
        num_heads=case.num_heads,
        windows=[case.window],
        hidden=None if case.hidden is None else torch.tensor(case.hidden, dtype=torch.int32, device=device),
        **bounds,
    )


def shuffled_tables(case: AttentionCase, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Block tables without order, and the Blocks of nobody; past its end a table names one of these."""
    needed = [-(-context // case.block_size) for _, context in case.lens]
    order = torch.randperm(sum(needed) + 3, generator=generator)
    tables = order[-1:].repeat(len(needed), max(needed) + 1)
    for index, blocks in enumerate(order[: sum(needed)].split(needed)):
        tables[index, : len(blocks)] = blocks
    return tables, order[sum(needed) :]


def poison(cache: GpuLayerCache, case: AttentionCase, tables: Tensor, unused: Tensor) -> None:
    """Put NaN wherever no row may look; where a format has none, into the scale."""
    target = cache.blocks if cache.scales is None else cache.scales
    target[unused] = float("nan")
    for index, (_, context) in enumerate(case.lens):
        last = tables[index, -(-context // case.block_size) - 1]
        target[last, :, (context - 1) % case.block_size + 1 :] = float("nan")


def check(
    case: AttentionCase,
    kv_format: str,
    dtype: torch.dtype,
    tiling: Tiling,
    device: torch.device,
    *,
    sharpness: float = 1.0,
) -> None:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    tables, unused = shuffled_tables(case, generator)
    cache = random_cache(case, int(tables.max()) + 4, kv_format, dtype)
    num_rows = sum(new for new, _ in case.lens)
    # A view into a wider matrix is as good.
    query = sharpness * torch.randn(num_rows, case.num_heads + 2, case.head_dim, generator=generator)
    query = query.to(dtype)[:, : case.num_heads]
    scale = case.head_dim**-0.5
    expected = reference.paged_attention(
        query.unflatten(1, (case.num_kv_heads, -1)).transpose(0, 1),
        as_layer_cache(cache),
        [new for new, _ in case.lens],
        [context for _, context in case.lens],
        tables,
        scale,
        hidden=case.hidden,
        window=case.window,
        soft_cap=case.soft_cap,
    )
    poison(cache, case, tables, unused)
    cache = GpuLayerCache(*(x if x is None else x.to(device) for x in (cache.blocks, cache.scales)))
    plan = make_plan(case, cache, tables, tiling, device)
    actual = paged_attention(
        query.to(device), cache, plan, scale, dtype=dtype, window=case.window, soft_cap=case.soft_cap
    )
    assert_matches(actual.cpu(), expected)


@pytest.mark.parametrize("case", GPU_CASES, ids=str)
def test_matches_reference(case: AttentionCase, device: torch.device) -> None:
    check(case, "plain", torch.float32, TILING, device)


@pytest.mark.parametrize(("kv_format", "dtype"), FORMATS, ids=str)
@pytest.mark.parametrize("index", [4, 5, 10, 13])
def test_matches_reference_in_every_format(
    index: int, kv_format: str, dtype: torch.dtype, device: torch.device
) -> None:
    check(GPU_CASES[index], kv_format, dtype, TILING, device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_fp8_is_read_by_its_bits_where_it_cannot_be_converted(
    dtype: torch.dtype, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "converts_fp8", lambda _: False)
    check(GPU_CASES[4], "fp8", dtype, TILING, device)


def test_large_scores_do_not_overflow(device: torch.device) -> None:
    """Two to their power would."""
    check(GPU_CASES[2], "plain", torch.float16, TILING, device, sharpness=60.0)


@pytest.mark.parametrize("has_prompts", [True, False])
def test_matches_reference_as_the_engine_tiles(has_prompts: bool, device: torch.device) -> None:
    case = AttentionCase(8, 2, 32, ((1, 530), (40, 50) if has_prompts else (1, 50)))
    tiling = choose_tiling(
        group=4,
        head_dim=32,
        dtype=torch.float32,
        kv_format="plain",
        max_model_len=4096,
        has_prompts=has_prompts,
    )
    check(case, "plain", torch.float32, tiling, device)


def numpy_keeps_bits() -> bool:
    """Return whether a row of numpy's products, by which Triton interprets, has the same bits anywhere."""
    left, right = np.random.default_rng(1).standard_normal((2, 16, 16), dtype=np.float32)
    products = left @ right
    return all((np.roll(left, by, 0) @ right == np.roll(products, by, 0)).all() for by in range(16))


def test_a_row_has_the_same_bits_in_any_step(device: torch.device) -> None:
    """A decode row beside others, alone, and under bounds that a CUDA graph would have."""
    if device.type == "cpu" and not numpy_keeps_bits():
        pytest.skip("numpy's products on this processor depend on the place of a row")
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    case = AttentionCase(6, 2, 16, ((1, 77), (20, 33), (1, 90)))
    tables, _ = shuffled_tables(case, generator)
    cache = random_cache(case, int(tables.max()) + 4, "plain", torch.float32)
    cache = GpuLayerCache(cache.blocks.to(device), None)
    query = torch.randn(22, 6, 16, generator=generator).to(device)

    def attend(case: AttentionCase, rows: Tensor, tables: Tensor, **bounds: int) -> Tensor:
        plan = make_plan(case, cache, tables, TILING, device, **bounds)
        return paged_attention(rows, cache, plan, 0.25, dtype=torch.float32, num_programs=5)

    together = attend(case, query, tables)
    alone = dataclasses.replace(case, lens=((1, 90),))
    assert torch.equal(attend(alone, query[21:], tables[2:]), together[21:])
    assert torch.equal(attend(alone, query[21:], tables[2:], max_context_len=1000), together[21:])
    chunks = [dataclasses.replace(case, lens=lens) for lens in (((7, 20),), ((13, 33),))]
    rows = torch.cat(
        [attend(one, query[a:b], tables[1:2]) for one, (a, b) in zip(chunks, ((1, 8), (8, 21)), strict=True)]
    )
    assert torch.equal(rows, together[1:21])


def test_rows_of_padding_are_left_alone(device: torch.device) -> None:
    case = AttentionCase(2, 1, 16, ((1, 20), (0, 99), (0, 0)))
    cache = GpuLayerCache(torch.zeros(4, 2, 16, 16, device=device), None)
    plan = make_plan(case, cache, torch.zeros(3, 2, dtype=torch.int64), TILING, device, max_query_len=1)
    out = paged_attention(torch.zeros(3, 2, 16, device=device), cache, plan, 1.0, dtype=torch.float32)
    assert (out[0] == 0).all()
    assert out[1:].isnan().all()


def test_arguments_are_checked(device: torch.device) -> None:
    case = AttentionCase(2, 1, 16, ((1, 20),))
    cache = GpuLayerCache(torch.zeros(4, 2, 16, 16, device=device), None)
    tables = torch.zeros(1, 2, dtype=torch.int64)
    plan = make_plan(case, cache, tables, TILING, device)
    query = torch.zeros(1, 2, 16, device=device)
    with pytest.raises(ValueError, match="window 5 was not planned"):
        paged_attention(query, cache, plan, 1.0, dtype=torch.float32, window=5)
    with pytest.raises(ValueError, match="query is"):
        paged_attention(query.half(), cache, plan, 1.0, dtype=torch.float16)
    with pytest.raises(ValueError, match="strides"):
        paged_attention(query[..., :8], cache, plan, 1.0, dtype=torch.float32)
    with pytest.raises(ValueError, match="3 heads are not a multiple of 2"):
        make_plan(
            AttentionCase(3, 2, 16, ((1, 20),)),
            GpuLayerCache(torch.zeros(1, 4, 16, 16), None),
            tables,
            TILING,
            device,
        )
    with pytest.raises(ValueError, match="windows must be at least 32"):
        make_plan(
            AttentionCase(2, 1, 16, ((3, 20),), window=31, trees=((-1, 0, 0),)), cache, tables, TILING, device
        )
    with pytest.raises(ValueError, match="without prompts"):
        make_plan(
            AttentionCase(2, 1, 16, ((9, 20),)),
            cache,
            tables,
            dataclasses.replace(TILING, has_prompts=False),
            device,
        )
