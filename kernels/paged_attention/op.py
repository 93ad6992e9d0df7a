"""Paged attention: checks arguments and chooses the implementation."""

import torch
from torch import Tensor

from kernels.kv_write import LayerCache
from kernels.paged_attention.cpu import attend
from kernels.paged_attention.plan import AttentionPlan
from kernels.simd import flat

NO_WINDOW = 1 << 62


def paged_attention(
    query: Tensor,
    cache: LayerCache,
    plan: AttentionPlan,
    scale: float,
    *,
    dtype: torch.dtype,
    window: int | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """Return causal attention of every query row over its Sequence's cached context, in `dtype`.

    `query` is [num_kv_heads, num_rows, group, head_dim] float32, as `kernels.kv_write` returns it, and the new
    tokens are in `cache` already. The result is [num_rows, num_kv_heads * group * head_dim]. With a `window`,
    a row reads only that many tokens, its own the last of them; with a `soft_cap`, scores are
    `soft_cap * tanh(score / soft_cap)`. Sums are in float32, and a row has the same bits in any Step. Raises
    ValueError on shapes that do not fit the plan.
    """
    num_kv_heads, num_rows, group, head_dim = query.shape
    _, cached_heads, cached_dim, block_size = cache.keys.shape
    if num_rows != len(plan.positions) or cached_heads != num_kv_heads or cached_dim != head_dim:
        raise ValueError(
            f"paged_attention: query {tuple(query.shape)}, keys {tuple(cache.keys.shape)}, "
            f"{len(plan.positions)} rows planned"
        )
    out = torch.empty(num_rows, num_kv_heads * group * head_dim, dtype=dtype)
    attend(
        len(plan.scratch),
        flat(query),
        flat(cache.keys),
        flat(cache.values),
        plan.block_tables,
        plan.positions,
        plan.first_rows,
        plan.num_rows,
        plan.sequences,
        num_kv_heads,
        group,
        head_dim,
        block_size,
        scale,
        soft_cap or 0.0,
        window or NO_WINDOW,
        plan.scratch,
        flat(out),
    )
    return out
