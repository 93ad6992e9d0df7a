"""Computes self-attention over the paged KV cache."""

from torch import Tensor

from kernels.kv_write import HeadNorms, PagedCache, rotary_kv_write
from kernels.paged_attention import paged_attention
from worker.engine.models.layers.linear import Projection
from worker.engine.models.step_input import StepInput


class Attention:
    """Self-attention of one layer: rotary cache write and attention.

    `qkv` is its one product for query, key and value, which runs before it.
    """

    __slots__ = ("norms", "qkv", "scale", "soft_cap", "window")

    def __init__(
        self,
        qkv: Projection,
        *,
        scale: float,
        norms: HeadNorms | None = None,
        window: int | None = None,
        soft_cap: float | None = None,
    ) -> None:
        self.window = window  # tokens that a row reads, itself included; None: all up to it
        self.qkv = qkv
        self.scale = scale
        self.norms = norms
        self.soft_cap = soft_cap

    def __call__(self, qkv: Tensor, angles: Tensor, cache: PagedCache, step: StepInput) -> Tensor:
        """Return [num_tokens, num_heads * head_dim], before the output projection.

        `qkv` [num_tokens, qkv.out_features] is the product; `angles` are as in `kernels.kv_write`.
        """
        query = rotary_kv_write(qkv, angles, step.positions, step.slots, cache, self.norms)
        return paged_attention(
            query,
            cache,
            step.attention,
            self.scale,
            dtype=qkv.dtype,
            window=self.window,
            soft_cap=self.soft_cap,
        )
