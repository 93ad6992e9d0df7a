"""Self-attention over the paged cache."""

from dataclasses import dataclass

from torch import Tensor

from kernels.kv_write import write_kv_
from kernels.paged_attention import paged_attention
from kernels.rms_norm import rms_norm
from kernels.rotary import apply_rotary_
from worker.engine.input_builder import StepInput
from worker.engine.layers.linear import Projection


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Normalisation of each query and key head before the rotation."""

    query: Tensor  # [head_dim]
    key: Tensor  # [head_dim]
    eps: float


class Attention:
    """Query, key and value from one product; rotary over queries and keys at once; cache write; attention."""

    __slots__ = (
        "_head_dim",
        "_norms",
        "_num_heads",
        "_num_kv_heads",
        "_qkv",
        "_scale",
        "_soft_cap",
        "window",
    )

    def __init__(
        self,
        qkv: Projection,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        norms: HeadNorms | None = None,
        window: int | None = None,
        soft_cap: float | None = None,
    ) -> None:
        self.window = window  # tokens a row reads, its own the last of them; None: all before it
        self._qkv = qkv
        self._num_heads = num_heads
        self._num_kv_heads = num_kv_heads
        self._head_dim = head_dim
        self._scale = scale
        self._norms = norms
        self._soft_cap = soft_cap

    def __call__(self, x: Tensor, angles: tuple[Tensor, Tensor], cache: Tensor, step: StepInput) -> Tensor:
        """Return [num_tokens, num_heads * head_dim], before the output projection.

        `x` is [num_tokens, hidden], `cache` one layer as in `kernels.kv_write`.
        """
        # [num_tokens, query heads | key heads | value heads, head_dim]
        heads = self._qkv(x).view(x.shape[0], -1, self._head_dim)
        query, key = heads[:, : self._num_heads], heads[:, self._num_heads :][:, : self._num_kv_heads]
        if self._norms is not None:
            query.copy_(rms_norm(query, self._norms.query, self._norms.eps))
            key.copy_(rms_norm(key, self._norms.key, self._norms.eps))
        apply_rotary_(heads[:, : self._num_heads + self._num_kv_heads], *angles)
        write_kv_(cache, heads[:, self._num_heads :], step.slots)
        return paged_attention(query, cache, step.attention[self.window], self._scale, self._soft_cap)
