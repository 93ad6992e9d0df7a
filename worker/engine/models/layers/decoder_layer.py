"""Holds the weights of one decoder layer."""

from dataclasses import dataclass

from torch import Tensor

from worker.engine.models.layers.attention import Attention
from worker.engine.models.layers.linear import Projection
from worker.engine.models.layers.mlp import Mlp


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Weights of one layer."""

    attention_norm: Tensor
    attention: Attention
    attention_out: Projection
    attention_post_norm: Tensor | None
    mlp_norm: Tensor
    mlp: Mlp
    mlp_post_norm: Tensor | None
