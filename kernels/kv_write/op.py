"""KV write: checks arguments and chooses the implementation (plain torch on a CPU)."""

from torch import Tensor


def write_kv_(cache: Tensor, kv: Tensor, slots: Tensor) -> None:
    """Store each token's keys and values in its Slot.

    `cache` is one layer, [2 * num_kv_heads, num_blocks, block_size, head_dim], key heads first; `kv` is
    [num_tokens, 2 * num_kv_heads, head_dim], any strides with a dense last axis; `slots` [num_tokens] int64,
    `block_id * block_size + offset`, no Slot twice. Raises ValueError on shapes that do not fit.
    """
    num_heads, num_blocks, block_size, head_dim = cache.shape
    if kv.shape != (slots.shape[0], num_heads, head_dim):
        raise ValueError(f"write_kv: cache {tuple(cache.shape)}, kv {tuple(kv.shape)}")
    cache.view(num_heads, num_blocks * block_size, head_dim).index_copy_(1, slots, kv.transpose(0, 1))
