"""Makes the model's input from a PackedStep on a CPU."""

import torch

from kernels.paged_attention import plan_attention
from worker.engine.models.step_input import StepInput
from worker.engine.running.input_builder import PackedStep


class CpuPlacement:
    """Makes StepInputs from PackedSteps and shares their memory."""

    def __init__(self, *, block_size: int, group: int, head_dim: int) -> None:
        self._block_size = block_size
        self._group = group  # query heads that share a KV head
        self._head_dim = head_dim

    def place(self, step: PackedStep) -> StepInput:
        """Return the tensors of a Step."""
        width = int(step.places.max()) // self._block_size + 1
        return StepInput(
            token_ids=torch.from_numpy(step.token_ids),
            positions=torch.from_numpy(step.positions),
            slots=torch.from_numpy(step.slots),
            attention=plan_attention(
                step.num_tokens,
                step.places,
                step.all_block_tables[step.rows, :width],
                step.hidden,
                block_size=self._block_size,
                group=self._group,
                head_dim=self._head_dim,
            ),
            output_rows=(
                None if step.output_rows is None else torch.tensor(step.output_rows, dtype=torch.int64)
            ),
        )
