"""Defines the input of a model's forward over one Step."""

from dataclasses import dataclass

from torch import Tensor

from kernels.paged_attention import AttentionPlan, GpuAttentionPlan


@dataclass(frozen=True, slots=True)
class StepInput:
    """The tensors of a PackedStep on the device: int64 on a CPU, int32 on a GPU."""

    token_ids: Tensor  # [num_tokens]
    positions: Tensor  # [num_tokens]
    slots: Tensor  # [num_tokens]
    attention: AttentionPlan | GpuAttentionPlan
    output_rows: Tensor | None  # [num_outputs]; None: all rows
