"""Build the engine's configuration from the settings."""

from pathlib import Path

from worker.engine.requests.batch_policy import batch_policy
from worker.engine.requests.config import EngineConfig
from worker.settings import Settings

EMBEDDING_KV_BYTES = 256 << 20


def engine_config(config: Settings) -> EngineConfig:
    """Return the configuration of the engine that the settings ask for."""
    speculates = config.speculation == "auto"
    return EngineConfig.for_device(
        config.device,
        model=config.model,
        dtype=config.dtype,
        kv_cache_dtype=config.kv_cache_dtype,
        block_size=config.block_size,
        max_num_sequences=config.max_num_sequences,
        max_tokens_per_step=config.max_tokens_per_step,
        kv_cache_bytes=config.kv_cache_bytes,
        admission=config.admission,
        draft_model=config.draft_model if speculates else None,  # which would take memory
        speculates=speculates,
        enable_prefix_cache=config.prefix_cache == "on",
        shares_prefixes=config.prefix_sharing == "deployment",
        num_threads=config.threads,
        latency_target_seconds=None if config.target_latency_ms is None else config.target_latency_ms / 1000,
        batch_policy=batch_policy(
            config.batch_policy,
            timeout_seconds=config.batch_timeout_ms / 1000,
            size=config.batch_size,
            latency_seconds=config.batch_latency_ms / 1000,
            priority_seconds=config.batch_priority_seconds,
            lengths=config.batch_lengths,
            tokens=config.batch_tokens,
            memory_share=config.batch_memory_share,
        ),
    )


def embedding_engine_config(config: Settings, model: Path) -> EngineConfig:
    """Return the configuration of the engine that embeds prompts, beside that of the served model."""
    return EngineConfig.for_device(
        config.device,
        model=model,
        dtype="f32" if config.device == "cpu" else "bf16",
        kv_cache_bytes=EMBEDDING_KV_BYTES,
        num_threads=config.threads,
    )
