"""Computes the MLP of a layer, which treats each token on its own."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from kernels.gate_mul import gelu_mul, silu_mul
from worker.engine.models.layers.linear import Projection

# By their names in config.json.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": silu_mul, "gelu_pytorch_tanh": gelu_mul}


class Mlp(Protocol):
    """Interface of a layer's MLP, dense or a mixture of experts."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return [num_tokens, hidden] for `x` [num_tokens, hidden]."""


class Gated:
    """`activation(gate(x)) * up(x)`, with gate and up computed by one product."""

    __slots__ = ("_function", "activation", "gate_up", "out_features")

    def __init__(self, gate_up: Projection, activation: str) -> None:
        self.out_features = gate_up.out_features // 2
        self.gate_up = gate_up
        self.activation = activation
        self._function = ACTIVATIONS[activation]

    def __call__(self, x: Tensor) -> Tensor:
        """Return [num_tokens, out_features] for `x` [num_tokens, in_features]."""
        return self._function(self.gate_up(x))


class GatedMlp:
    """Dense MLP: `down(gated(x))`."""

    __slots__ = ("down", "gated")

    def __init__(self, gated: Projection, down: Projection) -> None:
        self.gated = gated
        self.down = down

    def __call__(self, x: Tensor) -> Tensor:
        """Return [num_tokens, hidden] for `x` [num_tokens, hidden]."""
        return self.down(self.gated(x))
