"""Packs the weights of all experts as the kernel reads them."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from kernels.quantization import QuantizedWeight
from kernels.weight_only_linear import LinearWeight, pack_linear_weight


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """The stacked weights of all experts, one expert's rows after another's."""

    stacked: LinearWeight
    num_experts: int

    @property
    def rows_per_expert(self) -> int:
        """The rows of one expert; a gated product gives half as many."""
        return self.stacked.out_features // self.num_experts

    def to(self, device: torch.device) -> Self:
        """Return a copy on `device`."""
        return replace(self, stacked=self.stacked.to(device))


def pack_expert_weights(
    weight: QuantizedWeight | Tensor, num_experts: int, *, is_gated: bool = False
) -> ExpertWeights:
    """Pack `weight` [num_experts * rows, in_features], quantized or not, for `expert_linear`.

    If gated, the first half of each expert's rows is gate, the second up. Raises ValueError when the rows do
    not divide evenly among the experts, and where `kernels.weight_only_linear.pack_linear_weight` does.
    """
    rows, halves = weight.shape[0], 1 + is_gated
    if rows % (num_experts * halves):
        raise ValueError(f"expert_linear: {rows} rows cannot be divided among {num_experts} experts")
    return ExpertWeights(pack_linear_weight(weight, is_gated=is_gated, num_experts=num_experts), num_experts)
