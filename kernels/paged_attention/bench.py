"""Times paged attention on a GPU beside SDPA over dense bfloat16 tensors."""

from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  (the name torch's own documentation uses)
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from kernels.benchmarking import LeastWork, ResultTable, Timing, require_gpu, time_call
from kernels.device import chip_name
from kernels.kv_write import GpuLayerCache, KVFormat, LayerCache
from kernels.paged_attention import GpuAttentionPlan, choose_tiling, paged_attention, reference
from kernels.paged_attention.gpu import plan_attention
from kernels.testing import assert_matches

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 32, 8, 128, 16
SCALE = HEAD_DIM**-0.5
# The number of Sequences, the rows of each, and the context of each.
STEPS = ((1, 1, 8192), (32, 1, 8192), (128, 1, 1024), (1, 1, 131072), (4, 2048, 2048), (1, 512, 16384))


def main() -> None:
    """Check a small Step in each KV format, then time decode Steps and prefills of Llama 3 8B's heads."""
    require_gpu()
    table = ResultTable("paged_attention", ["SDPA"])
    for kv_format in ("plain", "int8", "fp8"):
        _check(kv_format)
        for step in STEPS:
            _time(table, kv_format, *step)
    table.write(Path(__file__).parent)


def _run(
    kv_format: KVFormat, num_sequences: int, num_new: int, context: int
) -> tuple[Tensor, GpuLayerCache, GpuAttentionPlan, Tensor]:
    num_blocks = -(-context // BLOCK_SIZE)
    shape = (num_sequences * num_blocks, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    cache = GpuLayerCache.allocate(*shape, dtype=torch.bfloat16, kv_format=kv_format, device="cuda")
    if cache.scales is None:
        cache.blocks.normal_()
    else:
        cache.blocks.random_(0, 64)
        cache.scales.uniform_(0.01, 0.02)
    order = torch.randperm(shape[0], device="cuda", dtype=torch.int32)
    tables = order.view(num_sequences, num_blocks)
    query = torch.randn(num_sequences * num_new, NUM_HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    starts = torch.arange(num_sequences + 1, device="cuda", dtype=torch.int32) * num_new
    lens = torch.full((num_sequences,), context, device="cuda", dtype=torch.int32)
    tiling = choose_tiling(
        group=NUM_HEADS // NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        dtype=query.dtype,
        kv_format=kv_format,
        max_model_len=131072,
        has_prompts=num_new > 1,
        chip=chip_name(query.device),
    )
    plan = plan_attention(
        starts,
        lens,
        tables,
        cache,
        tiling,
        num_heads=NUM_HEADS,
        max_query_len=num_new,
        max_context_len=context,
    )
    return query, cache, plan, tables


def _check(kv_format: KVFormat) -> None:
    query, cache, plan, tables = _run(kv_format, 2, 3, 1000)
    numbers = cache.blocks.view(torch.float8_e4m3fn) if kv_format == "fp8" else cache.blocks
    numbers = numbers.float() if cache.scales is None else numbers.float() * cache.scales.unsqueeze(-1)
    keys, values = numbers.cpu().chunk(2, dim=1)
    expected = reference.paged_attention(
        query.cpu().view(len(query), NUM_KV_HEADS, -1, HEAD_DIM).transpose(0, 1),
        LayerCache(keys.transpose(2, 3), values),
        [3, 3],
        [1000, 1000],
        tables.cpu(),
        SCALE,
    )
    assert_matches(paged_attention(query, cache, plan, SCALE, dtype=query.dtype).cpu(), expected)


def _time(table: ResultTable, kv_format: KVFormat, num_sequences: int, num_new: int, context: int) -> None:
    query, cache, plan, _ = _run(kv_format, num_sequences, num_new, context)
    moved = cache.blocks.nbytes + 2 * query.nbytes + (0 if cache.scales is None else cache.scales.nbytes)
    read = num_new * context - num_new * (num_new - 1) // 2  # pairs of a row and a token that it reads
    work = LeastWork(moved, operations=4 * num_sequences * read * NUM_HEADS * HEAD_DIM)
    ours = time_call(lambda: paged_attention(query, cache, plan, SCALE, dtype=query.dtype))
    table.row(
        f"{num_sequences} x {num_new} rows over {context}, {kv_format} KV",
        ours,
        work,
        {
            "SDPA": _time_sdpa(
                query.view(num_sequences, num_new, NUM_HEADS, HEAD_DIM).transpose(1, 2), context
            )
        },
    )


def _time_sdpa(rows: Tensor, context: int) -> Timing:
    """Time torch's attention of [num_sequences, num_heads, num_new, head_dim] over dense keys and values."""
    num_sequences, _, num_new, _ = rows.shape
    key, value = (
        torch.randn(num_sequences, NUM_KV_HEADS, context, HEAD_DIM, device="cuda").to(rows.dtype)
        for _ in range(2)
    )
    # The last row reads the whole context; each row reads the tokens up to its own.
    mask = causal_lower_right(num_new, context) if num_new > 1 else None
    return time_call(
        lambda: F.scaled_dot_product_attention(rows, key, value, attn_mask=mask, enable_gqa=True)
    )


if __name__ == "__main__":
    main()
