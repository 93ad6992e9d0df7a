"""Gemma 2: norms on both sides, soft caps, scaled embeddings, a window on every other layer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from worker.engine.models.checkpoint import read_key, read_size
from worker.engine.models.decoder_config import DecoderConfig, read_decoder_config, read_windows
from worker.engine.requests.errors import CheckpointError, UnsupportedModelError


def read_gemma2(file: Path, config: dict[str, Any]) -> DecoderConfig:
    """Return the shape of a `Gemma2ForCausalLM`."""
    shape = read_gemma(file, config)
    window = read_size(file, config, "sliding_window", 4096)
    return replace(
        shape,
        windows=read_windows(file, config, window, [index % 2 == 0 for index in range(shape.num_layers)]),
        attention_soft_cap=_cap(file, config, "attn_logit_softcapping", 50.0),
        logit_soft_cap=_cap(file, config, "final_logit_softcapping", 30.0),
    )


def read_gemma(file: Path, config: dict[str, Any]) -> DecoderConfig:
    """Return the shape that Gemma 2 and 3 have in common."""
    if config.get("use_bidirectional_attention"):
        raise UnsupportedModelError(file, "use_bidirectional_attention", "is not supported")
    defaults = {"head_dim": 256, "tie_word_embeddings": True}
    shape = read_decoder_config(
        file, defaults | config, activation_key="hidden_activation", activation="gelu_pytorch_tanh"
    )
    has_bias = read_key(file, config, "attention_bias", bool, default=False)
    return replace(
        shape,
        has_qkv_bias=has_bias,
        has_output_bias=has_bias,
        has_post_norms=True,
        has_offset_norms=True,
        embedding_scale=shape.hidden_size**0.5,
        attention_scale=_scalar(file, config) ** -0.5,
    )


def _scalar(file: Path, config: dict[str, Any]) -> float:
    scalar = read_key(file, config, "query_pre_attn_scalar", float, 256.0)
    if not scalar > 0:
        raise CheckpointError(file, "query_pre_attn_scalar", f"must be above 0, not {scalar}")
    return scalar


def _cap(file: Path, config: dict[str, Any], key: str, default: float) -> float | None:
    """Return a soft cap: the default if the key is absent, None if it is null."""
    if key in config and config[key] is None:
        return None
    return read_key(file, config, key, float, default)
