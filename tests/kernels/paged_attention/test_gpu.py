import dataclasses

import pytest
import torch
from torch import Tensor

from kernels.kv_write import LayerCache
from kernels.kv_write.gpu import GpuLayerCache
from kernels.paged_attention import reference
from kernels.paged_attention.cases import CASES, Case
from kernels.paged_attention.gpu import GpuAttentionPlan, paged_attention, plan_attention
from kernels.paged_attention.tiling import Tiling, choose_split_size, choose_tiling
from kernels.testing import assert_matches

# Small enough that the cases have several of everything.
TILING = Tiling(
    has_prompts=True,
    split_rows=1,
    split_size=32,
    block_tile_m=32,
    block_n=16,
    num_warps=4,
    num_stages=2,
    programs_per_processor=3,
)
MORE_CASES = (
    Case(8, 2, 64, ((1, 200), (3, 90), (4, 4), (0, 7), (1, 64))),  # rows of speculation; a padding Sequence
    Case(6, 2, 96, ((1, 130), (40, 75))),  # a head that is no power of 2
    Case(7, 1, 32, ((1, 100), (9, 20))),  # nor is a group
    Case(4, 2, 32, ((1, 300), (4, 299), (50, 290)), window=70),  # splits begin after the first
    Case(4, 2, 32, ((1, 64), (1, 65), (1, 96), (1, 97)), window=32),  # windows that end on a split
    Case(4, 1, 32, ((1, 90), (20, 50)), block_size=32),
)


def random_cache(case: Case, num_blocks: int, kv_format: str, dtype: torch.dtype) -> GpuLayerCache:
    rows = (num_blocks, 2 * case.num_kv_heads, case.block_size)
    if kv_format == "plain":
        return GpuLayerCache(torch.randn(*rows, case.head_dim).to(dtype), None)
    scales = torch.rand(rows) + 0.5
    if kv_format == "int8":
        return GpuLayerCache(
            torch.randint(-127, 128, (*rows, case.head_dim), dtype=torch.int8), scales / 64
        )
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
    case: Case, cache: GpuLayerCache, tables: Tensor, tiling: Tiling, device: str, **bounds: int
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
        window=case.window,
        **bounds,
    )


def shuffled_tables(case: Case, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Block tables without order, and the Blocks that nobody holds; past its end a table names one of these."""
    needed = [-(-context // case.block_size) for _, context in case.lens]
    order = torch.randperm(sum(needed) + 3, generator=generator)
    tables = order[-1:].repeat(len(needed), max(needed) + 1)
    for index, blocks in enumerate(order[: sum(needed)].split(needed)):
        tables[index, : len(blocks)] = blocks
    return tables, order[sum(needed) :]


def poison(cache: GpuLayerCache, case: Case, tables: Tensor, unused: Tensor) -> None:
    """Put NaN wherever no row may look; where a format has none, into the scale."""
    target = cache.blocks if cache.scales is None else cache.scales
    target[unused] = float("nan")
    for index, (_, context) in enumerate(case.lens):
        last = tables[index, -(-context // case.block_size) - 1]
        target[last, :, (context - 1) % case.block_size + 1 :] = float("nan")


@pytest.mark.parametrize(
    ("kv_format", "dtype"),
    [
        ("plain", torch.float32),
        ("plain", torch.float16),
        ("int8", torch.float32),
        ("fp8", torch.float32),
        ("int8", torch.float16),
        ("fp8", torch.float16),
    ],
    ids=str,
)
@pytest.mark.parametrize("split_rows", [1, 4])
@pytest.mark.parametrize("case", CASES + MORE_CASES, ids=str)
def test_matches_reference(
    case: Case,
    split_rows: int,
    kv_format: str,
    dtype: torch.dtype,
    device: str,
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    tables, unused = shuffled_tables(case, generator)
    cache = random_cache(case, int(tables.max()) + 4, kv_format, dtype)
    num_rows = sum(new for new, _ in case.lens)
    # A view into a wider matrix is as good.
    query = torch.randn(num_rows, case.num_heads + 2, case.head_dim, generator=generator).to(dtype)
    query = query[:, : case.num_heads]
    scale = case.head_dim**-0.5
    grouped = query.unflatten(1, (case.num_kv_heads, -1)).transpose(0, 1)
    expected = reference.paged_attention(
        grouped,
        as_layer_cache(cache),
        [new for new, _ in case.lens],
        [context for _, context in case.lens],
        tables,
        scale,
        window=case.window,
        soft_cap=case.soft_cap,
    )
    poison(cache, case, tables, unused)
    cache = GpuLayerCache(*(x if x is None else x.to(device) for x in (cache.blocks, cache.scales)))
    empty = torch.empty
    monkeypatch.setattr(
        torch,
        "empty",
        lambda *shape, **kw: empty(*shape, **kw).fill_(float("nan")),
    )
    tiling = dataclasses.replace(TILING, split_rows=split_rows)
    plan = make_plan(case, cache, tables, tiling, device)
    actual = paged_attention(query.to(device), cache, plan, scale, soft_cap=case.soft_cap)
    assert_matches(actual.cpu(), expected)
