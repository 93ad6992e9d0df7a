"""Multiplies activations by quantized weights, on a CPU in floats, and there by bfloat16 weights too."""

import torch
from torch import Tensor

from kernels.scaled_linear import ScaledWeight, scaled_linear
from kernels.weight_only_linear import LinearWeight, TiledWeight, weight_only_linear


class WeightOnlyLinear:
    """`x @ weight.T + bias` with `x` in floats; for a gated weight `silu(gate) * up`, on a GPU only.

    With `dtype`, products are in it, whatever the dtype of `x` and of the result.
    """

    __slots__ = ("_dtype", "out_features", "weight")

    def __init__(self, weight: LinearWeight | TiledWeight, dtype: torch.dtype | None = None) -> None:
        is_gated = isinstance(weight, LinearWeight) and weight.is_gated
        self.out_features = weight.out_features // (1 + is_gated)
        self.weight = weight
        self._dtype = dtype

    def __call__(self, x: Tensor) -> Tensor:
        """Return [num_tokens, out_features] for `x` [num_tokens, in_features]."""
        return weight_only_linear(x.to(self._dtype or x.dtype), self.weight).to(x.dtype)


class ScaledLinear:
    """As WeightOnlyLinear on a GPU, but with weight and tokens in 8 bits; each call quantizes the tokens."""

    __slots__ = ("_weight", "out_features")

    def __init__(self, weight: ScaledWeight) -> None:
        self.out_features = weight.out_features // (1 + weight.is_gated)
        self._weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        """Return [num_tokens, out_features] for `x` [num_tokens, in_features]."""
        return scaled_linear(x, self._weight)
