"""Qwen3: normalised query and key heads."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from worker.engine.models.checkpoint import read_key
from worker.engine.models.decoder_config import DecoderConfig, read_decoder_config
from worker.engine.models.families.qwen2 import read_qwen_windows


def read_qwen3(file: Path, config: dict[str, Any]) -> DecoderConfig:
    """Return the shape of a `Qwen3ForCausalLM`."""
    shape = read_decoder_config(file, {"head_dim": 128} | config)
    has_bias = read_key(file, config, "attention_bias", bool, default=False)
    return replace(
        shape,
        has_qkv_bias=has_bias,
        has_output_bias=has_bias,
        has_head_norms=True,
        windows=read_qwen_windows(file, config, shape.num_layers),
    )
