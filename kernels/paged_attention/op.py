"""Paged attention: checks arguments and chooses the implementation (plain torch on a CPU)."""

import torch
import torch.nn.functional as F  # noqa: N812  (the name torch's own documentation uses)
from torch import Tensor

from kernels.paged_attention.plan import AttentionGroup, AttentionPlan


def paged_attention(query: Tensor, cache: Tensor, plan: AttentionPlan, scale: float) -> Tensor:
    """Return causal attention of every query row over its Sequence's cached context.

    `query` is [num_rows, num_heads, head_dim], any strides with a dense last axis; `cache` is one layer,
    [2 * num_kv_heads, num_blocks, block_size, head_dim], key heads first, the new tokens already written and
    every value finite. The result is [num_rows, num_heads * head_dim]. Raises ValueError on shapes that do
    not fit the plan.
    """
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads = cache.shape[0] // 2
    if num_rows != plan.num_rows or num_heads % num_kv_heads or cache.shape[3] != head_dim:
        raise ValueError(
            f"paged_attention: query {tuple(query.shape)}, cache {tuple(cache.shape)}, "
            f"{plan.num_rows} rows planned"
        )
    out = torch.empty(num_rows, num_heads * head_dim, dtype=query.dtype)
    blocks = cache.view(cache.shape[0], cache.shape[1], -1)
    for group in plan.groups:
        # Gathering along the Block axis leaves each head's context dense and in order.
        kv = blocks.index_select(1, group.block_ids)
        kv = kv.view(2, num_kv_heads * group.num_sequences, -1, head_dim)  # axis 2: context
        rows = slice(group.first_row, group.last_row)
        if group.last_row - group.first_row == group.num_sequences:
            _decode(query[rows], kv[0], kv[1], group, scale, out[rows])
        else:
            _prefill(query[rows], kv[0], kv[1], group, scale, out[rows])
    return out


def _decode(
    query: Tensor, key: Tensor, value: Tensor, group: AttentionGroup, scale: float, out: Tensor
) -> None:
    """Write one row a Sequence: the query heads that share a KV head are the rows of one product."""
    num_sequences, num_heads, head_dim = query.shape
    num_kv_heads = key.shape[0] // num_sequences
    grouped = (num_sequences, num_kv_heads, num_heads // num_kv_heads, head_dim)
    rows = query.reshape(grouped).transpose(0, 1).reshape(key.shape[0], -1, head_dim)
    if group.mask is None:
        scores = torch.bmm(rows, key.transpose(1, 2)).mul_(scale)
    else:
        scores = torch.baddbmm(group.mask, rows, key.transpose(1, 2), alpha=scale)
    mixed = torch.bmm(torch.softmax(scores, dim=-1), value)
    out.view(grouped).copy_(mixed.view(num_kv_heads, num_sequences, -1, head_dim).transpose(0, 1))


def _prefill(
    query: Tensor, key: Tensor, value: Tensor, group: AttentionGroup, scale: float, out: Tensor
) -> None:
    """Write all rows of one Sequence."""
    num_rows, num_heads, head_dim = query.shape
    context = num_rows if group.mask is None else group.mask.shape[1]
    mixed = F.scaled_dot_product_attention(
        query.transpose(0, 1).unsqueeze(0),
        key[:, :context].unsqueeze(0),
        value[:, :context].unsqueeze(0),
        attn_mask=group.mask,
        is_causal=group.is_causal,
        scale=scale,
        enable_gqa=key.shape[0] != num_heads,
    )
    out.view(num_rows, num_heads, head_dim).copy_(mixed[0].transpose(0, 1))
