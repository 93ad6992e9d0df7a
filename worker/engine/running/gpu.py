"""Sets up the model runner on a GPU. Needs Triton, so nothing imports it on a CPU."""

import logging
import time
from collections.abc import Sequence
from typing import cast

import torch

from kernels.kv_write import GpuLayerCache, PagedCache
from worker.engine.models.registry import Architecture, LoadedModel
from worker.engine.requests.config import EngineConfig
from worker.engine.running.cuda_graphs import DecodeGraphs
from worker.engine.running.device import spare_bytes
from worker.engine.running.device_tables import DeviceTables
from worker.engine.running.gpu_step_input import AttentionPlanner, GpuPlacement
from worker.engine.running.gpu_steps import PaddedDecode, run_each_kind, run_largest_step
from worker.engine.running.kv_cache import KVCacheSize, kv_format_of, size_kv_cache

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

    return size_kv_cache(config, architecture, dtype, spare_bytes(device, run))


class GpuSteps:
    """Parts that run Steps on a GPU: CUDA graphs for decode Steps, a placement for all others.

    The constructor runs each kind of Step once, to compile its kernels, and records the graphs.
    """

    def __init__(
        self,
        config: EngineConfig,
        architecture: Architecture,
        model: LoadedModel,
        kv_cache: Sequence[PagedCache],
        dtype: torch.dtype,
        device: torch.device,
        max_model_len: int,
    ) -> None:
        planner = AttentionPlanner(architecture, cast("GpuLayerCache", kv_cache[0]), dtype, max_model_len)
        self.tables = DeviceTables(
            max_num_sequences=config.max_num_sequences,
            max_blocks_per_sequence=-(-max_model_len // config.block_size),
            block_size=config.block_size,
            device=device,
        )
        self.placement = GpuPlacement(planner, self.tables, device)
        self.graphs: DecodeGraphs | None = None
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
            )
            torch.cuda.synchronize()
            logger.info("ran each kind of Step in %.1f s", time.monotonic() - began)
            decode = PaddedDecode(
                model,
                kv_cache,
                planner,
                device,
                max_num_sequences=config.max_num_sequences,
                max_model_len=max_model_len,
                tables=self.tables,
            )
            self.graphs = DecodeGraphs(decode, config.max_num_sequences)
