"""Rotary embedding: checks arguments and chooses the implementation (plain torch on a CPU)."""

from torch import Tensor


def apply_rotary_(heads: Tensor, cos: Tensor, signed_sin: Tensor) -> None:
    """Rotate every head by its token's angles, in place.

    `heads` is [num_tokens, num_heads, head_dim], any strides with a dense last axis: a view of the fused
    QKV output covers query and key heads in one call. `cos` and `signed_sin` are [num_tokens, head_dim];
    the first half of `signed_sin` is negated, so `y = x * cos + swap_halves(x) * signed_sin`.
    Raises ValueError on shapes that do not fit. Source: Su et al., arXiv:2104.09864, in the half-split
    form of the Llama checkpoints.
    """
    num_tokens, num_heads, head_dim = heads.shape
    if cos.shape != (num_tokens, head_dim) or signed_sin.shape != cos.shape or head_dim % 2:
        raise ValueError(f"rotary: heads {tuple(heads.shape)}, cos {tuple(cos.shape)}")
    halves = heads.view(num_tokens, num_heads, 2, head_dim // 2)
    angles = (num_tokens, 1, 2, head_dim // 2)
    swapped = halves.flip(2)
    halves.mul_(cos.view(angles)).addcmul_(swapped, signed_sin.view(angles))
