"""Computes the KV write one token at a time."""

import torch
from torch import Tensor

from kernels.kv_write.cache import LayerCache
from kernels.kv_write.head_norms import HeadNorms


def rotary_kv_write(
    qkv: Tensor,
    angles: Tensor,
    positions: Tensor,
    slots: Tensor,
    cache: LayerCache,
    norms: HeadNorms | None = None,
) -> tuple[Tensor, LayerCache]:
    """Return the queries in float32 and a copy of `cache` with the tokens written."""
    keys, values = cache.keys.clone(), cache.values.clone()
    _, num_kv_heads, head_dim, block_size = keys.shape
    heads = qkv.float().view(len(qkv), -1, head_dim)
    num_heads = heads.shape[1] - 2 * num_kv_heads
    query, key = heads[:, :num_heads], heads[:, num_heads : num_heads + num_kv_heads]
    value = heads[:, num_heads + num_kv_heads :]
    if norms is not None:
        query, key = (
            x / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + norms.eps) * weight
            for x, weight in ((query, norms.query), (key, norms.key))
        )
    turns = torch.complex(*angles[positions].unbind(1)).unsqueeze(1)
    query, key = (_rotated(x, turns) for x in (query, key))
    for token, slot in enumerate(slots.tolist()):
        keys[slot // block_size, :, :, slot % block_size] = key[token]
        values[slot // block_size, :, slot % block_size] = value[token]
    grouped = query.view(len(qkv), num_kv_heads, -1, head_dim).transpose(0, 1).contiguous()
    return grouped, LayerCache(keys, values)


def _rotated(x: Tensor, turns: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    turned = torch.complex(first, second) * turns
    return torch.cat((turned.real, turned.imag), dim=-1)
