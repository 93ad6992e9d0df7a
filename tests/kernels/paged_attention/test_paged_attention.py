import pytest
import torch

from kernels.paged_attention import paged_attention, plan_attention, reference
from kernels.paged_attention.cases import CASES, Case
from kernels.testing import assert_matches


@pytest.mark.parametrize("case", CASES, ids=str)
def test_matches_reference(
    case: Case, dtype: torch.dtype, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
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
    cache_shape = (2 * case.num_kv_heads, num_blocks, case.block_size, case.head_dim)
    cache = torch.randn(cache_shape, generator=generator).to(dtype)
    # Slots past each context, and Blocks of no Sequence, hold what would be noticed.
    for index, context in enumerate(context_lens):
        last = block_tables[index, needed[index] - 1]
        cache[:, last, (context - 1) % case.block_size + 1 :] = 1e4
    cache[:, order[first:]] = 1e4
    num_rows = sum(query_lens)
    fused = torch.randn(num_rows, case.num_heads + 2, case.head_dim, generator=generator).to(dtype)
    query = fused[:, : case.num_heads]
    scale = case.head_dim**-0.5
    expected = reference.paged_attention(
        query,
        cache,
        query_lens,
        context_lens,
        block_tables,
        scale,
        window=case.window,
        soft_cap=case.soft_cap,
    )
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *shape, **kw: empty(*shape, **kw).fill_(float("nan")))
    plan = plan_attention(
        query_lens,
        context_lens,
        block_tables,
        block_size=case.block_size,
        num_kv_heads=case.num_kv_heads,
        dtype=dtype,
        window=case.window,
    )
    assert_matches(paged_attention(query, cache, plan, scale, case.soft_cap), expected)


def test_a_row_has_the_same_bits_however_the_step_is_cut(generator: torch.Generator) -> None:
    """bfloat16, Blocks of 16: as a prompt, in chunks, alone, and as decode rows beside others."""
    length, num_heads, num_kv_heads, head_dim = 300, 6, 2, 64
    query = torch.randn(length, num_heads, head_dim, generator=generator).bfloat16()
    cache = torch.randn(2 * num_kv_heads, 80, 16, head_dim, generator=generator).bfloat16()
    tables = torch.arange(80).view(2, 40)

    def attend(query_lens: list[int], context_lens: list[int], rows: torch.Tensor) -> torch.Tensor:
        plan = plan_attention(
            query_lens,
            context_lens,
            tables[: len(query_lens)],
            block_size=16,
            num_kv_heads=num_kv_heads,
            dtype=torch.bfloat16,
        )
        return paged_attention(rows, cache, plan, head_dim**-0.5)

    whole = attend([length], [length], query)
    for chunk in (1, 7, 16, 100, 129):
        for first in range(0, length, chunk):
            rows = query[first : first + chunk]
            part = attend([len(rows)], [first + len(rows)], rows)
            assert torch.equal(part, whole[first : first + chunk]), (chunk, first)
    for context in (1, 15, 16, 17, 64, 300):
        rows = query[[context - 1, 5]]
        assert torch.equal(attend([1, 1], [context, 500], rows)[0], whole[context - 1]), context


def test_groups_cover_every_row_once_and_cut_where_padding_is_dear() -> None:
    lens = [2000, 1990, 100, 90, 80, 16, 1]
    plan = plan_attention(
        [1] * len(lens) + [9],
        [*lens, 9],
        torch.zeros(len(lens) + 1, 128, dtype=torch.int64),
        block_size=16,
        num_kv_heads=2,
        dtype=torch.float32,
    )
    rows = [(group.first_row, group.last_row) for group in plan.groups]
    assert rows == [(0, 2), (2, 7), (7, 16)]
    assert plan.num_rows == 16


def test_arguments_are_checked() -> None:
    tables = torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="shorter than its query"):
        plan_attention([2], [1], tables, block_size=4, num_kv_heads=1, dtype=torch.float32)
    plan = plan_attention([1], [1], tables, block_size=4, num_kv_heads=1, dtype=torch.float32)
    with pytest.raises(ValueError, match="paged_attention"):
        paged_attention(torch.zeros(2, 1, 4), torch.zeros(2, 1, 4, 4), plan, 1.0)
