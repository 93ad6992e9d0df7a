"""Self-attention over the paged cache."""

from torch import Tensor

from kernels.kv_write import write_kv_
from kernels.paged_attention import paged_attention
from kernels.rotary import apply_rotary_
from worker.engine.input_builder import StepInput
from worker.engine.layers.linear import Projection


class Attention:
    """Query, key and value from one product; rotary over queries and keys at once; cache write; attention."""

    __slots__ = ("_head_dim", "_num_heads", "_num_kv_heads", "_qkv", "_scale")

    def __init__(self, qkv: Projection, *, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        self._qkv = qkv
        self._num_heads = num_heads
        self._num_kv_heads = num_kv_heads
        self._head_dim = head_dim
        self._scale = head_dim**-0.5

    def __call__(self, x: Tensor, angles: tuple[Tensor, Tensor], cache: Tensor, step: StepInput) -> Tensor:
        """Return [num_tokens, num_heads * head_dim], before the output projection.

        `x` is [num_tokens, hidden], `cache` one layer as in `kernels.kv_write`.
        """
        # [num_tokens, query heads | key heads | value heads, head_dim]
        heads = self._qkv(x).view(x.shape[0], -1, self._head_dim)
        apply_rotary_(heads[:, : self._num_heads + self._num_kv_heads], *angles)
        write_kv_(cache, heads[:, self._num_heads :], step.slots)
        return paged_attention(heads[:, : self._num_heads], cache, step.attention, self._scale)
