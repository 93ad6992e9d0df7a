"""Runs a model's Steps on a GPU, and sizes its KV cache. Needs Triton, so nothing imports it on a CPU."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from kernels.kv_write import GpuLayerCache, PagedCache
from worker.engine.models.registry import Architecture, LoadedModel
from worker.engine.requests.config import EngineConfig
from worker.engine.running.cuda_graphs import StepGraphs, graph_sizes
from worker.engine.running.device import spare_bytes
from worker.engine.running.device_tables import DeviceTables
from worker.engine.running.gpu_step_input import AttentionPlanner, GpuPlacement
from worker.engine.running.gpu_steps import PaddedStep, StepSize, run_each_kind, run_largest_step
from worker.engine.running.input_builder import PackedStep
from worker.engine.running.kv_cache import KVCacheSize, kv_format_of, size_kv_cache
from worker.engine.speculation.speculation import FEW, MAX_GUESSES_OF_ALL

logger = logging.getLogger(__name__)


def measured_kv_cache_size(
    config: EngineConfig,
    architecture: Architecture,
    model: LoadedModel,
    dtype: torch.dtype,
    device: torch.device,
    *,
    max_model_len: int,
) -> KVCacheSize:
    """Return the size of the KV cache that fits beside the weights and the largest Step."""
    shape = (1, architecture.num_kv_heads, config.block_size, architecture.head_dim)
    block = GpuLayerCache.allocate(*shape, dtype=dtype, kv_format=kv_format_of(config), device=device)
    planner = AttentionPlanner(architecture, block, dtype, max_model_len)

    def run() -> None:
        run_largest_step(
            model,
            [block] * architecture.num_layers,
            planner,
            device,
            max_num_sequences=config.max_num_sequences,
            max_tokens=config.max_tokens_per_step,
            max_model_len=max_model_len,
        )

    num_bytes = spare_bytes(device, run)
    if config.draft_model is not None:  # it is loaded later
        num_bytes -= _most_weight_bytes(config.draft_model, dtype)
    return size_kv_cache(config, architecture, dtype, max(num_bytes, 0))


def num_logits(config: EngineConfig) -> int:
    """Return the most rows of a Step's logits: of each Sequence one, and one for each guess."""
    count = config.max_num_sequences
    return count + max(MAX_GUESSES_OF_ALL, FEW * count) if config.speculates else count


def _most_weight_bytes(directory: Path, dtype: torch.dtype) -> int:
    """Return the most memory that a checkpoint's weights may take: its floats are in 16 bits at least."""
    stored = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    return stored * dtype.itemsize // torch.bfloat16.itemsize


class GpuSteps:
    """Runs a model's Steps on a GPU: small ones as CUDA graphs, all others launch by launch.

    The constructor runs each kind of Step once, to compile its kernels, and records the graphs.
    """

    num_padding = 0  # rows of the last Step

    def __init__(
        self,
        config: EngineConfig,
        architecture: Architecture,
        model: LoadedModel,
        kv_cache: Sequence[PagedCache],
        dtype: torch.dtype,
        device: torch.device,
        max_model_len: int,
        *,
        has_trees: bool = False,
    ) -> None:
        self._model, self._kv_cache = model, kv_cache
        planner = AttentionPlanner(architecture, cast("GpuLayerCache", kv_cache[0]), dtype, max_model_len)
        self.tables = DeviceTables(
            max_num_sequences=config.max_num_sequences,
            max_blocks_per_sequence=-(-max_model_len // config.block_size),
            block_size=config.block_size,
            device=device,
        )
        self.placement = GpuPlacement(planner, self.tables, device)
        self.graphs: StepGraphs | None = None
        if device.type == "cuda":
            began = time.monotonic()
            run_each_kind(
                model,
                kv_cache,
                planner,
                device,
                max_num_sequences=config.max_num_sequences,
                max_tokens=config.max_tokens_per_step,
                max_model_len=max_model_len,
                num_logits=num_logits(config),
                has_trees=has_trees,
            )
            torch.cuda.synchronize()
            logger.info("ran each kind of Step in %.1f s", time.monotonic() - began)
            sizes = graph_sizes(
                config.max_num_sequences, config.max_tokens_per_step, speculates=config.speculates
            )
            padded = PaddedStep(
                model,
                kv_cache,
                planner,
                device,
                largest=StepSize(*map(max, zip(*sizes, strict=True))),
                max_model_len=max_model_len,
                tables=self.tables,
                has_trees=has_trees,
            )
            self.graphs = StepGraphs(padded, sizes)

    def outputs(self, step: PackedStep, before: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the final hidden states of a Step's output rows, and their logits if they are at hand.

        Both are valid until the next call. `before` holds the tokens that the previous Step chose, if they
        are still on the device.
        """
        self.num_padding = 0
        if self.graphs is not None:
            found = self.graphs.outputs(step, before)
            if found is not None:
                self.num_padding = self.graphs.num_rows - len(step.token_ids)
                return found
        return self._model.forward(self.placement.place(step, before), self._kv_cache), None
