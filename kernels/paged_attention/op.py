"""Checks the arguments of paged attention and chooses the implementation."""

import torch
from torch import Tensor

from kernels.kv_write import GpuLayerCache, LayerCache, PagedCache
from kernels.paged_attention.cpu import ATTEND
from kernels.paged_attention.plan import AttentionPlan
from kernels.paged_attention.task import AttentionCall
from kernels.paged_attention.tiling import GpuAttentionPlan
from kernels.threads import LINE, num_threads

NO_WINDOW = 1 << 62


def paged_attention(
    query: Tensor,
    cache: PagedCache,
    plan: AttentionPlan | GpuAttentionPlan,
    scale: float,
    *,
    dtype: torch.dtype,
    window: int | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """Return causal attention of every query row over its Sequence's cached context, in `dtype`.

    `query` is as `kernels.kv_write` returns it: [num_kv_heads, num_rows, group, head_dim] float32 on a CPU,
    [num_rows, num_heads, head_dim] in `dtype` on a GPU; `cache` already holds the new tokens. The result is
    [num_rows, num_heads * head_dim]. With a `window`, a row reads only that many tokens, the last of them its
    own; on a GPU, a window of a Step with trees holds MAX_TREE_ROWS at least. With a `soft_cap`, scores are
    `soft_cap * tanh(score / soft_cap)`. Sums are in float32; a CPU that multiplies bytes rounds queries and
    weights to 24 bits if the cache is int8 in Blocks of 16. On a CPU, a row has the same bits in any Step, in
    a tree too. On a GPU, so do decode rows, and rows of a prompt whose chunks all have several rows.
    Raises ValueError on shapes that do not fit the plan and on dtypes that do not go together.
    """
    if isinstance(cache, GpuLayerCache) and isinstance(plan, GpuAttentionPlan):
        from kernels.paged_attention import gpu  # noqa: PLC0415  (Triton is there with a GPU only)

        return gpu.paged_attention(query, cache, plan, scale, dtype=dtype, window=window, soft_cap=soft_cap)
    if isinstance(cache, GpuLayerCache) or isinstance(plan, GpuAttentionPlan):
        raise TypeError("paged_attention: cache and plan are for different devices")
    return _attend_on_cpu(query, cache, plan, scale, dtype=dtype, window=window, soft_cap=soft_cap)


def _attend_on_cpu(
    query: Tensor,
    cache: LayerCache,
    plan: AttentionPlan,
    scale: float,
    *,
    dtype: torch.dtype,
    window: int | None,
    soft_cap: float | None,
) -> Tensor:
    num_kv_heads, num_rows, group, head_dim = query.shape
    _, cached_heads, cached_dim, block_size = cache.keys.shape
    if num_rows != plan.places.shape[0] or cached_heads != num_kv_heads or cached_dim != head_dim:
        raise ValueError(
            f"paged_attention: query {tuple(query.shape)} does not fit keys {tuple(cache.keys.shape)} "
            f"and a plan of {plan.places.shape[0]} rows"
        )
    attend = ATTEND.get((dtype, cache.keys.dtype))
    if attend is None:
        raise ValueError(f"paged_attention: cannot return {dtype} from a cache of {cache.keys.dtype}")
    out = torch.empty(num_rows, num_kv_heads * group * head_dim, dtype=dtype)
    call = AttentionCall(
        query.data_ptr(),
        cache.keys.data_ptr(),
        cache.values.data_ptr(),
        0 if cache.scales is None else cache.scales[0].data_ptr(),
        0 if cache.scales is None else cache.scales[1].data_ptr(),
        out.data_ptr(),
        num_rows,
        num_kv_heads,
        group,
        head_dim,
        block_size,
        scale,
        soft_cap or 0.0,
        window or NO_WINDOW,
    )
    num_parts = num_threads()
    # A counter, and where threads meet.
    zeros = torch.zeros((2 + num_parts) * LINE, dtype=torch.int64)
    attend(num_parts, zeros.data_ptr(), tuple(call), plan.numbers)
    return out
