"""One Step as the model sees it, and the way there on a CPU."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.paged_attention import AttentionPlan, GpuAttentionPlan, plan_attention
from worker.engine.input_builder import PackedStep


@dataclass(frozen=True, slots=True)
class StepInput:
    """The tensors of a PackedStep on the device: int64 on a CPU, int32 on a GPU."""

    token_ids: Tensor  # [num_tokens]
    positions: Tensor  # [num_tokens]
    slots: Tensor  # [num_tokens]
    attention: AttentionPlan | GpuAttentionPlan
    output_rows: Tensor | None  # [num_outputs]; None: all rows


class CpuPlacement:
    """Makes StepInputs of PackedSteps, whose memory they share."""

    def __init__(self, *, block_size: int, group: int, head_dim: int) -> None:
        self._block_size = block_size
        self._group = group  # query heads that share a KV head
        self._head_dim = head_dim

    def place(self, step: PackedStep) -> StepInput:
        """Return the tensors of a Step."""
        width = int(step.positions.max()) // self._block_size + 1
        return StepInput(
            token_ids=torch.from_numpy(step.token_ids),
            positions=torch.from_numpy(step.positions),
            slots=torch.from_numpy(step.slots),
            attention=plan_attention(
                step.num_tokens,
                step.positions,
                step.all_block_tables[step.rows, :width],
                block_size=self._block_size,
                group=self._group,
                head_dim=self._head_dim,
            ),
            output_rows=(
                None if step.output_rows is None else torch.tensor(step.output_rows, dtype=torch.int64)
            ),
        )
