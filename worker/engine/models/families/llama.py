"""Llama 2 and 3: optional biases on attention and MLP."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from worker.engine.models.checkpoint import read_key
from worker.engine.models.decoder_config import DecoderConfig, read_decoder_config


def read_llama(file: Path, config: dict[str, Any]) -> DecoderConfig:
    """Return the shape of a `LlamaForCausalLM`."""
    has_attention_bias = read_key(file, config, "attention_bias", bool, default=False)
    return replace(
        read_decoder_config(file, config),
        has_qkv_bias=has_attention_bias,
        has_output_bias=has_attention_bias,
        has_mlp_bias=read_key(file, config, "mlp_bias", bool, default=False),
    )
