"""Computes what follows a layer's attention, up to what the next layer's attention takes.

The norm before the next layer's product belongs to it, so that one chain of products has it all.
"""

from typing import Protocol

from torch import Tensor

from kernels.product_chain import After, Chain, Link, run_chain
from kernels.rms_norm import add_rms_norm, rms_norm
from worker.engine.models.layers.decoder_layer import DecoderLayer
from worker.engine.models.layers.linear import ChainedLinear, Projection
from worker.engine.models.layers.mlp import Gated, GatedMlp


class LayerEnd(Protocol):
    """Interface of the end of a layer, in one piece or in several."""

    def __call__(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return the next layer's query, key and value, or the final hidden states after the last one.

        `x` is the attention's result. `residual` [num_tokens, hidden] float32 changes in place.
        """


class SeparateEnd:
    """The end of a layer, operator by operator."""

    __slots__ = ("_eps", "_layer", "_norm", "_qkv")

    def __init__(self, layer: DecoderLayer, norm: Tensor, qkv: Projection | None, eps: float) -> None:
        self._layer = layer
        self._norm = norm
        self._qkv = qkv
        self._eps = eps

    def __call__(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return as `LayerEnd` says."""
        layer, eps = self._layer, self._eps
        x = layer.attention_out(x)
        if layer.attention_post_norm is not None:
            x = rms_norm(x, layer.attention_post_norm, eps)
        x = layer.mlp(add_rms_norm(x, residual, layer.mlp_norm, eps))
        if layer.mlp_post_norm is not None:
            x = rms_norm(x, layer.mlp_post_norm, eps)
        x = add_rms_norm(x, residual, self._norm, eps)
        return x if self._qkv is None else self._qkv(x)


class ChainedEnd:
    """The end of a layer as one chain of products."""

    __slots__ = ("chain",)

    def __init__(self, chain: Chain) -> None:
        self.chain = chain

    def __call__(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return as `LayerEnd` says."""
        return run_chain(self.chain, x, residual)


def layer_end(layer: DecoderLayer, norm: Tensor, qkv: Projection | None, eps: float) -> LayerEnd:
    """Return the end of a layer; `norm` and `qkv` are the next layer's, or the final norm and None."""
    mlp, out = layer.mlp, layer.attention_out
    if (
        isinstance(out, ChainedLinear)
        and isinstance(mlp, GatedMlp)
        and isinstance(mlp.gated, Gated)
        and isinstance(mlp.gated.gate_up, ChainedLinear)
        and isinstance(mlp.down, ChainedLinear)
        and isinstance(qkv, ChainedLinear | None)
    ):
        links = [
            Link(out.weight, After.NORM, layer.mlp_norm, layer.attention_post_norm),
            Link(mlp.gated.gate_up.weight, _GATES[mlp.gated.activation]),
            Link(mlp.down.weight, After.NORM, norm, layer.mlp_post_norm),
        ]
        if qkv is not None:
            links.append(Link(qkv.weight))
        return ChainedEnd(Chain(links, eps))
    return SeparateEnd(layer, norm, qkv, eps)


_GATES = {"silu": After.SILU, "gelu_pytorch_tanh": After.GELU}
