"""Runs a model over pieces of text, without an Engine."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from kernels.kv_write import LayerCache
from kernels.paged_attention import plan_attention
from worker.engine.models.checkpoint import Weights
from worker.engine.models.registry import LoadedModel, read_architecture
from worker.engine.models.step_input import StepInput

BLOCK_SIZE = 16


class TextForward:
    """A model with the KV cache of one Sequence; raises CheckpointError as the Engine would."""

    def __init__(
        self,
        directory: Path,
        length: int,
        dtype: torch.dtype,
        make_weights: Callable[[Path, torch.dtype], Weights] = Weights,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        architecture = read_architecture(directory)
        self.length = min(length, architecture.max_position)
        num_blocks = -(-self.length // BLOCK_SIZE)
        with torch.inference_mode():
            with make_weights(directory, dtype) as weights:
                self.model: LoadedModel = architecture.load(weights, self.length)
            self.weights = weights
            self.kv_cache = [
                LayerCache.allocate(
                    num_blocks,
                    architecture.num_kv_heads,
                    BLOCK_SIZE,
                    architecture.head_dim,
                    kv_dtype or dtype,
                )
                for _ in range(architecture.num_layers)
            ]
        self._block_table = torch.arange(num_blocks).unsqueeze(0).numpy()
        self._group = architecture.num_heads // architecture.num_kv_heads
        self._head_dim = architecture.head_dim

    @torch.inference_mode()
    def hidden(self, ids: Tensor) -> Tensor:
        """Return the final hidden states [num_tokens, hidden] of token ids [num_tokens], at most `length`."""
        places = torch.arange(len(ids))
        plan = plan_attention(
            [len(ids)],
            places.numpy(),
            self._block_table,
            block_size=BLOCK_SIZE,
            group=self._group,
            head_dim=self._head_dim,
        )
        return self.model.forward(StepInput(ids, places, places, plan, None), self.kv_cache)
