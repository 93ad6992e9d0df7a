"""The KV write, one token at a time."""

from torch import Tensor


def write_kv(cache: Tensor, kv: Tensor, slots: Tensor) -> Tensor:
    """Return a copy of `cache` with the tokens written, for `kernels.kv_write.write_kv_`."""
    cache = cache.clone()
    for token, slot in enumerate(slots.tolist()):
        cache[:, slot // cache.shape[2], slot % cache.shape[2]] = kv[token]
    return cache
