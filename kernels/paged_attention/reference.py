"""Paged attention in float32, one Sequence and one row at a time."""

from collections.abc import Sequence

import torch
from torch import Tensor


def paged_attention(
    query: Tensor,
    cache: Tensor,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    block_tables: Tensor,
    scale: float,
    *,
    window: int | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """Return the float32 truth for `kernels.paged_attention.paged_attention`."""
    num_heads, head_dim = query.shape[1:]
    num_kv_heads, block_size = cache.shape[0] // 2, cache.shape[2]
    rows = []
    first = 0
    for index, (num_new, context) in enumerate(zip(query_lens, context_lens, strict=True)):
        blocks = block_tables[index, : -(-context // block_size)].long()
        kv = cache[:, blocks].float().reshape(2, num_kv_heads, -1, head_dim)
        kv = kv.repeat_interleave(num_heads // num_kv_heads, dim=1)
        for offset in range(num_new):
            end = context - num_new + offset + 1
            begin = 0 if window is None else max(0, end - window)
            scores = torch.einsum("hd,hld->hl", query[first + offset].float(), kv[0, :, begin:end]) * scale
            if soft_cap is not None:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            rows.append(torch.einsum("hl,hld->hd", scores.softmax(dim=-1), kv[1, :, begin:end]).reshape(-1))
        first += num_new
    return torch.stack(rows)
