"""Computes paged attention in float32, one Sequence and one row at a time."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.kv_write import LayerCache


def paged_attention(
    query: Tensor,
    cache: LayerCache,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    block_tables: Tensor,
    scale: float,
    *,
    hidden: Sequence[int] | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """Return the float32 reference result of `kernels.paged_attention.paged_attention`."""
    group = query.shape[2]
    unread = hidden or [0] * sum(query_lens)
    heads = query.float().transpose(0, 1).flatten(1, 2)  # [num_rows, num_heads, head_dim]
    block_size = cache.keys.shape[3]
    rows = []
    first = 0
    for index, (num_new, context) in enumerate(zip(query_lens, context_lens, strict=True)):
        blocks = block_tables[index, : -(-context // block_size)].long()
        key = cache.keys[blocks].float().permute(1, 0, 3, 2).flatten(1, 2)
        value = cache.values[blocks].float().transpose(0, 1).flatten(1, 2)
        key, value = (x.repeat_interleave(group, dim=0) for x in (key, value))
        for offset in range(num_new):
            end = context - num_new + offset + 1
            bits = unread[first + offset]
            read = [place for place in range(end) if place == end - 1 or not bits >> (end - place - 2) & 1]
            read = read if window is None else read[-window:]
            scores = torch.einsum("hd,hld->hl", heads[first + offset], key[:, read]) * scale
            if soft_cap is not None:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            rows.append(torch.einsum("hl,hld->hd", scores.softmax(dim=-1), value[:, read]).reshape(-1))
        first += num_new
    return torch.stack(rows)
