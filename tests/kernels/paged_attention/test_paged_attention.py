import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.kv_write import LayerCache
from kernels.paged_attention import AttentionPlan, hidden_places, paged_attention, plan_attention, reference
from kernels.paged_attention.cases import CASES, FORKS, AttentionCase
from kernels.testing import assert_matches


def plan_of(
    query_lens: list[int],
    context_lens: list[int],
    tables: Tensor,
    hidden: list[int] | None = None,
    *,
    block_size: int,
    group: int,
    head_dim: int,
) -> AttentionPlan:
    pairs = zip(query_lens, context_lens, strict=True)
    places = torch.cat([torch.arange(context - new, context) for new, context in pairs])
    return plan_attention(
        query_lens,
        places.numpy(),
        tables.numpy(),
        None if hidden is None else np.array(hidden),
        block_size=block_size,
        group=group,
        head_dim=head_dim,
    )


def _random_cache(
    num_blocks: int, heads: int, size: int, dim: int, dtype: torch.dtype, generator: torch.Generator
) -> tuple[LayerCache, LayerCache]:
    """Return a cache, and what it holds in float32."""
    keys = torch.randn(num_blocks, heads, dim, size, generator=generator)
    values = torch.randn(num_blocks, heads, size, dim, generator=generator)
    if dtype != torch.int8:
        cache = LayerCache(keys.to(dtype), values.to(dtype))
        return cache, LayerCache(cache.keys.float(), cache.values.float())
    levels = (keys * 40).clamp(-127, 127).to(dtype), (values * 40).clamp(-127, 127).to(dtype)
    scales = torch.rand(2, num_blocks, heads, size, generator=generator) / 40
    truth = LayerCache(levels[0] * scales[0].unsqueeze(2), levels[1] * scales[1].unsqueeze(3))
    return LayerCache(*levels, scales), truth


@pytest.mark.parametrize(
    ("dtype", "cache_dtype"),
    [
        (torch.float32, torch.float32),
        (torch.float32, torch.bfloat16),  # dtype int8
        (torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.int8),
        (torch.bfloat16, torch.int8),
    ],
    ids=str,
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_reference(
    case: AttentionCase,
    cache_dtype: torch.dtype,
    dtype: torch.dtype,
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query_lens, context_lens = ([pair[i] for pair in case.lens] for i in (0, 1))
    needed = [-(-context // case.block_size) for context in context_lens]
    num_blocks = sum(needed) + 3
    order = torch.randperm(num_blocks, generator=generator)
    block_tables = order[-1:].repeat(len(needed), max(needed) + 1)  # past its end a table names any Block
    first = 0
    for index, count in enumerate(needed):
        block_tables[index, :count] = order[first : first + count]
        first += count
    heads, dim, size = case.num_kv_heads, case.head_dim, case.block_size
    cache, truth = _random_cache(num_blocks, heads, size, dim, cache_dtype, generator)
    # Slots past each context, and Blocks of no Sequence, hold what would be noticed.
    noticed = (cache.keys, cache.values) if cache.scales is None else (cache.scales[0], cache.scales[1])
    for index, context in enumerate(context_lens):
        last, used = block_tables[index, needed[index] - 1], (context - 1) % size + 1
        noticed[0][last, ..., used:] = float("nan")
        noticed[1][last, :, used:] = float("nan")
    for memory in noticed:
        memory[order[first:]] = float("nan")
    num_rows, group = sum(query_lens), case.num_heads // heads
    query = torch.randn(heads, num_rows, group, dim, generator=generator)
    scale = dim**-0.5
    options = {"window": case.window, "soft_cap": case.soft_cap}
    expected = reference.paged_attention(
        query, truth, query_lens, context_lens, block_tables, scale, hidden=case.hidden, **options
    )
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, **kw: empty(*shape, **kw).fill_(float("nan")))
    plan = plan_of(
        query_lens, context_lens, block_tables, case.hidden, block_size=size, group=group, head_dim=dim
    )
    assert_matches(paged_attention(query, cache, plan, scale, dtype=dtype, **options), expected)


@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("window", [None, 50])
def test_a_row_has_the_same_bits_however_the_step_is_cut(
    generator: torch.Generator, window: int | None, cache_dtype: torch.dtype
) -> None:
    """As a prompt, in chunks, alone, and as a decode row beside others."""
    length, group, num_kv_heads, head_dim = 300, 3, 2, 64
    query = torch.randn(num_kv_heads, length, group, head_dim, generator=generator)
    cache, _ = _random_cache(80, num_kv_heads, 16, head_dim, cache_dtype, generator)
    tables = torch.arange(80).view(2, 40)

    def attend(query_lens: list[int], context_lens: list[int], rows: Tensor) -> Tensor:
        plan = plan_of(
            query_lens,
            context_lens,
            tables[: len(query_lens)],
            block_size=16,
            group=group,
            head_dim=head_dim,
        )
        rows = rows.contiguous()
        return paged_attention(rows, cache, plan, head_dim**-0.5, dtype=torch.float32, window=window)

    whole = attend([length], [length], query)
    for chunk in (1, 7, 16, 100, 129):
        for first in range(0, length, chunk):
            rows = query[:, first : first + chunk]
            part = attend([rows.shape[1]], [first + rows.shape[1]], rows)
            assert torch.equal(part, whole[first : first + chunk]), (chunk, first)
    for context in (1, 15, 16, 17, 64, 300):
        rows = query[:, [context - 1, 5]]
        assert torch.equal(attend([1, 1], [context, 500], rows)[0], whole[context - 1]), context


@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("dim", [40, 48])  # those of bytes are multiples of 16
def test_a_row_of_a_tree_has_the_bits_of_its_path_alone(
    generator: torch.Generator, dim: int, window: int | None, cache_dtype: torch.dtype
) -> None:
    """In a Sequence that holds the same tokens one after another, wherever Blocks end."""
    parents, group, heads = FORKS, 3, 2
    hidden, count = hidden_places(parents), len(parents)
    query = torch.randn(heads, count, group, dim, generator=generator)
    cache, _ = _random_cache(20, heads, 16, dim, cache_dtype, generator)
    for start in (3, 9, 13, 47):
        places = torch.arange(start, start + count)
        table = torch.arange(10).unsqueeze(0)
        options = {"block_size": 16, "group": group, "head_dim": dim}
        plan = plan_of([count], [start + count], table, hidden, **options)
        call = {"dtype": torch.float32, "window": window}
        whole = paged_attention(query, cache, plan, 0.2, **call)
        for row in range(count):
            path = [one for one in range(row + 1) if one == row or not hidden[row] >> (row - one - 1) & 1]
            alone = _random_cache(20, heads, 16, dim, cache_dtype, generator)[0]
            for memory, other in zip(_memories(alone), _memories(cache), strict=True):
                for place in range(start):
                    memory[10 + place // 16, ..., place % 16, :] = other[place // 16, ..., place % 16, :]
                for depth, one in enumerate(path, start):
                    found = int(places[one])
                    memory[10 + depth // 16, ..., depth % 16, :] = other[found // 16, ..., found % 16, :]
            end = start + len(path)
            plan = plan_of([1], [end], table + 10, **options)
            expected = paged_attention(query[:, [row]], alone, plan, 0.2, **call)
            assert torch.equal(expected[0], whole[row]), (start, row)


# (contexts of decode rows, KV heads, the window, the fewest threads that share one of the contexts)
SHARED = (
    ([1500], 1, None, 2),
    ([1500], 1, 1100, 2),
    ([1500], 1, 1000, 8),  # too few tokens are read
    ([1023], 1, None, 8),
    ([2040, 1100, 1100], 1, 1030, 4),  # all read equally many
    ([2040, 40, 700, 1], 1, None, 2),  # the others are one thread's each
    ([1025, 1500, 1040], 2, None, 4),  # with fewer threads, each has a fair share as it is
)


@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("head_dim", [80, 256])  # the columns of one are no multiple of what a share has
@pytest.mark.parametrize(("contexts", "num_kv_heads", "window", "fewest"), SHARED)
def test_a_long_context_that_threads_share_has_the_same_bits(
    contexts: list[int],
    num_kv_heads: int,
    window: int | None,
    fewest: int,
    head_dim: int,
    cache_dtype: torch.dtype,
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_rows, group = len(contexts), 3
    query = torch.randn(num_kv_heads, num_rows, group, head_dim, generator=generator)
    cache, _ = _random_cache(520, num_kv_heads, 16, head_dim, cache_dtype, generator)
    tables = torch.randperm(520, generator=generator).view(4, 130)[:num_rows]
    empty, shares = torch.empty, []
    monkeypatch.setattr(torch, "empty", lambda *shape, **kw: empty(*shape, **kw).fill_(float("nan")))

    def attend(num_threads: int) -> Tensor:
        monkeypatch.setattr("kernels.paged_attention.plan.num_threads", lambda: num_threads)
        monkeypatch.setattr("kernels.paged_attention.op.num_threads", lambda: num_threads)
        plan = plan_of([1] * num_rows, contexts, tables, block_size=16, group=group, head_dim=head_dim)
        out = paged_attention(query, cache, plan, 0.1, dtype=torch.float32, window=window, soft_cap=20.0)
        # What is written into the places of shared contexts.
        shares.append(bool(plan.scratch[num_threads:].isfinite().any()))
        return out

    alone = attend(1)
    for num_threads in (2, 3, 7):
        assert torch.equal(attend(num_threads), alone)
    assert shares == [num_threads >= fewest for num_threads in (1, 2, 3, 7)]


def _memories(cache: LayerCache) -> list[Tensor]:
    """The tensors of a cache as [num_blocks, ..., block_size, numbers of a Slot]."""
    found = [cache.keys.transpose(2, 3), cache.values]
    return found if cache.scales is None else [*found, *cache.scales.unsqueeze(-1)]


def test_trees_have_limits() -> None:
    assert hidden_places(FORKS[:6]) == [0, 0, 0b1, 0b1, 0b11, 0b1011]
    with pytest.raises(ValueError, match="33 rows are more than 32"):
        hidden_places([-1] * 33)


@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.int8], ids=str)
def test_large_scores_do_not_overflow(generator: torch.Generator, cache_dtype: torch.dtype) -> None:
    """Their exponentials would."""
    query = 60 * torch.randn(1, 2, 3, 16, generator=generator)
    cache, truth = _random_cache(4, 1, 16, 16, cache_dtype, generator)
    tables = torch.arange(4).view(2, 2)
    plan = plan_of([1, 1], [30, 9], tables, block_size=16, group=3, head_dim=16)
    expected = reference.paged_attention(query, truth, [1, 1], [30, 9], tables, 1.0)
    assert_matches(paged_attention(query, cache, plan, 1.0, dtype=torch.bfloat16), expected)


def test_nan_stays_in_its_sequence(generator: torch.Generator) -> None:
    query = torch.randn(1, 2, 1, 16, generator=generator)
    cache = LayerCache(
        torch.randn(2, 1, 16, 16, generator=generator), torch.randn(2, 1, 16, 16, generator=generator)
    )
    cache.keys[0, 0, 3, 0] = float("nan")
    plan = plan_of([1, 1], [9, 9], torch.tensor([[0], [1]]), block_size=16, group=1, head_dim=16)
    out = paged_attention(query, cache, plan, 1.0, dtype=torch.float32)
    assert out[0].isnan().all()
    assert out[1].isfinite().all()


@pytest.mark.parametrize("place", ["query", "key", "value"])
def test_nan_in_an_int8_cache_stays_in_its_sequence(place: str, generator: torch.Generator) -> None:
    """A key or value that has one has a scale that is one."""
    query = torch.randn(1, 2, 1, 16, generator=generator)
    cache, _ = _random_cache(2, 1, 16, 16, torch.int8, generator)
    assert cache.scales is not None
    spoilt = {"query": query[0, 0, 0], "key": cache.scales[0, 0, 0], "value": cache.scales[1, 0, 0]}
    spoilt[place][3] = float("nan")
    plan = plan_of([1, 1], [9, 9], torch.tensor([[0], [1]]), block_size=16, group=1, head_dim=16)
    out = paged_attention(query, cache, plan, 1.0, dtype=torch.float32)
    assert out[0].isnan().all()
    assert out[1].isfinite().all()


def test_sums_over_a_long_context_do_not_overflow() -> None:
    """Values are large, with half of the scale in the second half; a sum in float32 is exact too."""
    half = 4096  # Blocks
    cache = LayerCache.allocate(2 * half, 1, 16, 16, torch.int8)
    assert cache.scales is not None
    cache.scales.fill_(2**-7)
    cache.scales[1, half:] /= 2
    cache.values[:half].fill_(127)
    cache.values[half:].fill_(126)
    plan = plan_of([1], [32 * half], torch.arange(2 * half).view(1, -1), block_size=16, group=2, head_dim=16)
    out = paged_attention(torch.ones(1, 1, 2, 16), cache, plan, 1.0, dtype=torch.float32)
    assert_matches(out, torch.full((1, 32), (127 / 128 + 126 / 256) / 2))


@pytest.mark.parametrize(("lens", "group"), [([1] * 7, 3), ([500, 1, 3], 1), ([9], 40)])
def test_items_cover_every_row_once(lens: list[int], group: int) -> None:
    tables = torch.zeros(len(lens), 40, dtype=torch.int64)
    plan = plan_of(lens, lens, tables, block_size=16, group=group, head_dim=8)
    rows = [
        (row, sequence)
        for first, count, sequence in zip(
            plan.first_rows.tolist(), plan.num_rows.tolist(), plan.sequences.tolist(), strict=True
        )
        for row in range(first, first + count)
    ]
    owners = [sequence for sequence, count in enumerate(lens) for _ in range(count)]
    assert rows == list(enumerate(owners))


def test_arguments_are_checked() -> None:
    tables = torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="places"):
        plan_attention(
            [2], torch.zeros(1, dtype=torch.int64).numpy(), tables.numpy(), block_size=4, group=1, head_dim=4
        )
    plan = plan_of([1], [1], tables, block_size=4, group=1, head_dim=4)
    cache = LayerCache.allocate(1, 1, 4, 4, torch.float32)
    with pytest.raises(ValueError, match="paged_attention"):
        paged_attention(torch.zeros(1, 2, 1, 4), cache, plan, 1.0, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"cannot return torch\.bfloat16 from a cache of torch\.float32"):
        paged_attention(torch.zeros(1, 1, 1, 4), cache, plan, 1.0, dtype=torch.bfloat16)
