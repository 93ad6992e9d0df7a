"""Sizes and allocates the memory of all Blocks."""

import logging
from dataclasses import dataclass
from typing import cast

import torch

from kernels.kv_write import GpuLayerCache, KVFormat, LayerCache, PagedCache
from worker.engine.models.registry import Architecture, read_architecture
from worker.engine.requests.config import EngineConfig
from worker.engine.requests.errors import ConfigError
from worker.engine.running.heap import small_heap

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KVCacheSize:
    """Number and bytes of Blocks, and the longest Sequence that they and the checkpoint allow."""

    num_blocks: int
    block_bytes: int  # keys and values of all layers
    max_model_len: int


def longest_sequence(config: EngineConfig, architecture: Architecture) -> int:
    """Return the longest Sequence if memory is no limit; raises ConfigError if over the checkpoint's."""
    max_model_len = config.max_model_len or architecture.max_position
    if max_model_len > architecture.max_position:
        raise ConfigError(
            f"max_model_len is {max_model_len}; the model supports at most {architecture.max_position}"
        )
    return max_model_len


def size_kv_cache(
    config: EngineConfig, architecture: Architecture, dtype: torch.dtype, max_bytes: int
) -> KVCacheSize:
    """Return the configured size, or one within `max_bytes`; raises ConfigError if max_model_len cannot fit.

    Without a configured max_model_len, the longest Sequence is shortened to fit, if there is one Block.
    A Block has memory for the draft model too, if there is one.
    """
    max_model_len = longest_sequence(config, architecture)
    block_bytes = _block_bytes(config, architecture, dtype)
    if config.draft_model is not None:
        block_bytes += _block_bytes(config, read_architecture(config.draft_model), dtype)
    per_sequence = -(-max_model_len // config.block_size)
    num_blocks = config.num_blocks or min(max_bytes // block_bytes, config.max_num_sequences * per_sequence)
    if num_blocks < per_sequence:
        if config.max_model_len is not None or num_blocks == 0:
            setting = "num_blocks" if config.num_blocks else "kv_cache_bytes"
            raise ConfigError(
                f"{setting} gives {num_blocks} Blocks of {block_bytes} bytes, but one Sequence of "
                f"max_model_len {max_model_len} needs {per_sequence}"
            )
        logger.warning(
            "max_model_len cut from %d to %d: the KV cache has %d Blocks",
            max_model_len,
            num_blocks * config.block_size,
            num_blocks,
        )
        max_model_len = num_blocks * config.block_size
    return KVCacheSize(num_blocks, block_bytes, max_model_len)


def _block_bytes(config: EngineConfig, architecture: Architecture, dtype: torch.dtype) -> int:
    head_bytes = architecture.head_dim * dtype.itemsize
    if config.kv_format != "plain":
        head_bytes = architecture.head_dim + torch.float32.itemsize  # 8 bits, and a scale
    return architecture.num_layers * 2 * architecture.num_kv_heads * config.block_size * head_bytes


def kv_format_of(config: EngineConfig) -> KVFormat:
    """Return the format of a Slot in a GPU's cache."""
    return cast("KVFormat", config.kv_format)


def allocate_kv_cache(
    config: EngineConfig,
    architecture: Architecture,
    num_blocks: int,
    dtype: torch.dtype,
    device: torch.device,
) -> list[PagedCache]:
    """Return the memory of every layer's Blocks; on a CPU it is taken as they fill."""
    shape = (num_blocks, architecture.num_kv_heads, config.block_size, architecture.head_dim)
    layers = range(architecture.num_layers)
    if config.device == "cuda":
        kv_format = kv_format_of(config)
        return [
            GpuLayerCache.allocate(*shape, dtype=dtype, kv_format=kv_format, device=device) for _ in layers
        ]
    stored = torch.int8 if config.kv_format == "int8" else dtype
    with small_heap():
        return [LayerCache.allocate(*shape, stored) for _ in layers]
