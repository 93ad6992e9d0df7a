"""Paged attention: checks arguments and chooses the implementation (plain torch on a CPU)."""

import torch
from torch import Tensor

from kernels.paged_attention.plan import AttentionGroup, AttentionPlan


def paged_attention(
    query: Tensor, cache: Tensor, plan: AttentionPlan, scale: float, soft_cap: float | None = None
) -> Tensor:
    """Return causal attention of every query row over its Sequence's cached context.

    `query` is [num_rows, num_heads, head_dim], any strides with a dense last axis; `cache` is one layer,
    [2 * num_kv_heads, num_blocks, block_size, head_dim], key heads first, the new tokens already written and
    every value finite. The result is [num_rows, num_heads * head_dim]. With a `soft_cap`, scores are
    `soft_cap * tanh(score / soft_cap)`. Raises ValueError on shapes that do not fit the plan.
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
        attend = _decode if group.last_row - group.first_row == group.num_sequences else _prefill
        attend(query[rows], kv[0], kv[1], group, scale, soft_cap, out[rows])
    return out


def _decode(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    group: AttentionGroup,
    scale: float,
    soft_cap: float | None,
    out: Tensor,
) -> None:
    """Write one row a Sequence: the query heads that share a KV head are the rows of one product."""
    num_sequences, num_heads, head_dim = query.shape
    num_kv_heads = key.shape[0] // num_sequences
    grouped = (num_sequences, num_kv_heads, num_heads // num_kv_heads, head_dim)
    rows = query.reshape(grouped).transpose(0, 1).reshape(key.shape[0], -1, head_dim)
    if group.mask is None or soft_cap is not None:
        scores = _scores(rows, key, scale, soft_cap)
        if group.mask is not None:
            scores.add_(group.mask)
    else:
        scores = torch.baddbmm(group.mask, rows, key.transpose(1, 2), alpha=scale)
    mixed = torch.bmm(torch.softmax(scores, dim=-1), value)
    out.view(grouped).copy_(mixed.view(num_kv_heads, num_sequences, -1, head_dim).transpose(0, 1))


def _prefill(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    group: AttentionGroup,
    scale: float,
    soft_cap: float | None,
    out: Tensor,
) -> None:
    """Write a tile of one Sequence's rows: query heads that share a KV head lie under each other."""
    num_rows, num_heads, head_dim = query.shape
    rows = query.transpose(0, 1).reshape(key.shape[0], -1, head_dim)
    scores = _scores(rows, key, scale, soft_cap)
    if group.mask is not None:
        scores.view(num_heads, num_rows, -1).add_(group.mask)
    mixed = torch.bmm(torch.softmax(scores, dim=-1), value)
    out.view(num_rows, num_heads, head_dim).copy_(mixed.view(num_heads, num_rows, head_dim).transpose(0, 1))


def _scores(rows: Tensor, key: Tensor, scale: float, soft_cap: float | None) -> Tensor:
    """Return scaled scores, rounded to the dtype once, as with a mask: the two must have the same bits."""
    scores = torch.baddbmm(rows.new_zeros(1), rows, key.transpose(1, 2), beta=0, alpha=scale)
    return scores if soft_cap is None else scores.div_(soft_cap).tanh_().mul_(soft_cap)
